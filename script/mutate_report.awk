# The report of script/mutate_ops.sh, from script/mutate_equivalent.txt and the results; fails below 95% caught.
# Fields are parted by tabs. Equivalents: FILE, part of the line, change, reason. Results: op, file, line, change,
# verdict, text of the line.
FNR == NR {
    if ($0 !~ /^#/ && NF == 4) {
        n_known++
        known_file[n_known] = $1
        known_text[n_known] = $2
        known_change[n_known] = $3
        known_reason[n_known] = $4
    }
    next
}

function equivalent(    i, n, part) {
    n = split($2, part, "/")
    for (i = 1; i <= n_known; i++)
        if (part[n] == known_file[i] && $4 == known_change[i] && index($6, known_text[i])) return known_reason[i]
    return ""
}

{
    if (!($1 in n_faults)) {
        order[++n_ops] = $1
        n_faults[$1] = n_caught[$1] = 0
    }
    if ($5 !~ /^caught/ && (reason = equivalent()) != "") {
        harmless = harmless sprintf("- %s:%d: `%s` in `%s`: %s\n", $2, $3, $4, $6, reason)
        next
    }
    n_faults[$1]++
    total++
    if ($5 ~ /^caught/) {
        n_caught[$1]++
        caught++
    } else {
        survivors = survivors sprintf("- %s:%d: `%s` in `%s`\n", $2, $3, $4, $6)
    }
}

END {
    print "# Faults that the op checks notice\n"
    printf "`script/mutate_ops.sh %s`, %s, %s: %d of %d caught (%.1f%%).\n\n", how, day, machine, caught, total,
        100 * caught / total
    print "| op | faults | caught |\n|---|---|---|"
    for (i = 1; i <= n_ops; i++) printf "| %s | %d | %d |\n", order[i], n_faults[order[i]], n_caught[order[i]]
    if (survivors != "") printf "\nNot caught:\n\n%s", survivors
    if (harmless != "") printf "\nNot counted, for they change no result:\n\n%s", harmless
    exit caught < 0.95 * total
}
