# firstlight's server for x86-64 CPUs. Build: docker build -t firstlight .  Run, with a checkpoint from outside:
#   docker run -p 127.0.0.1:8000:8000 -v /models/my-checkpoint:/model:ro -e FL_API_KEY_FILE=/run/keys -v ./keys:/run/keys:ro firstlight
# It listens on all addresses of its own network, so publish the port on an address you mean, and give it keys.
FROM debian:12-slim AS build
WORKDIR /src
COPY . .
RUN script/setup.sh build \
    && cmake -G Ninja -B /build -DFL_CUDA=off -DFL_UNPACK_MODEL=OFF -DCMAKE_INSTALL_PREFIX=/usr \
    && ninja -C /build \
    && DESTDIR=/out cmake --install /build

FROM debian:12-slim
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
       libdnnl2 libgomp1 libjansson4 libssl3 libzstd1 libxxhash0 libmicrohttpd12 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home firstlight
COPY --from=build /out/usr/bin/firstlight /usr/bin/firstlight
USER firstlight
ENV FL_HOST=0.0.0.0 FL_PORT=8000 FL_LOG_FORMAT=json
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/firstlight"]
CMD ["serve", "/model"]
