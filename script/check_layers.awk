# Which folder of src may include which; an include that is not listed is an error. The lists hold what a layer may
# reach in the end, so "engine" names all below it. Everyone may include <firstlight/firstlight.h>; tests, tools and
# the example may include everything. A file may always include its own folder's headers.
BEGIN {
    allow["base"] = ""
    allow["op"] = "base"
    allow["backend"] = "base op"
    allow["comm"] = "base op backend"
    allow["model"] = "base op backend comm"
    allow["kv"] = "base op backend"
    allow["attn"] = "base op backend kv"
    allow["plan"] = "base op backend comm model kv attn"
    allow["text"] = "base"
    allow["engine"] = "base op backend comm model kv attn plan text sched"
    allow["sched"] = "base"
    allow["server"] = "base text sched"
    allow["eval"] = "base text"
    allow["load"] = "base eval"
    allow["calibrate"] = "base op backend comm model kv attn plan text sched engine eval"
    allow["opcheck"] = "base op backend"
    allow["cli"] = "base op backend comm model kv attn plan text engine sched server eval load calibrate opcheck"
    # Single headers of the backend that ops see (not what implements them): the backend itself, every op's first
    # argument; the declarations op tables are made of; the matrix product.
    may_file["op", "backend/backend.h"] = 1
    may_file["op", "backend/op_tables.h"] = 1
    may_file["op", "backend/gemm.h"] = 1
    may_file["op", "backend/cuda/cuda_backend.h"] = 1
    for (layer in allow) {
        n = split(allow[layer], part, " ")
        for (i = 1; i <= n; i++) may[layer, part[i]] = 1
        may[layer, layer] = 1
    }
}

FNR == 1 {
    n_files++
    layer = ""
    if (FILENAME ~ /^src\//) {
        split(FILENAME, path, "/")
        layer = path[2]
        if (!(layer in allow)) {
            printf "%s: the folder src/%s is not in script/check_layers.awk\n", FILENAME, layer
            bad = 1
            layer = ""
        }
    }
}

/^[ ]*#[ ]*include[ ]*"/ {
    if (layer == "") next
    target = $0
    sub(/^[^"]*"/, "", target)
    sub(/".*/, "", target)
    if (target !~ /\//) {
        printf "%s:%d: \"%s\": write the path from src\n", FILENAME, FNR, target
        bad = 1
        next
    }
    split(target, to, "/")
    # The check of an op is linked to the command line only, and uses the harness that runs it.
    if (to[1] == "opcheck" && FILENAME ~ /_check\.[ch]$/) next
    if (!((layer, to[1]) in may) && !((layer, target) in may_file)) {
        printf "%s:%d: %s may not include %s (\"%s\")\n", FILENAME, FNR, layer, to[1], target
        bad = 1
    }
}

/^[ ]*#[ ]*include[ ]*"[^"]*\.c"/ {
    printf "%s:%d: a .c file is included\n", FILENAME, FNR
    bad = 1
}

END { exit bad || n_files == 0 }
