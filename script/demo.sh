#!/bin/sh
# make run: asks the bundled model a question about the bundled document. The model knows the phrasings it was trained
# on (models/spark-66m/README.md); share/demo/README.md lists more questions that the document answers.
set -eu
build=${1:?usage: demo.sh BUILD}
question='What is the password of the office that the silver-raven team reports to?'
set -- "$build/firstlight" run "$build/models/spark-66m" -f share/demo/document.txt "$question"
printf '%s run %s -f %s "%s"\n\n' "$1" "$3" "$5" "$6"
exec "$@"
