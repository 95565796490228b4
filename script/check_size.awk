# Files of at most 800 lines, functions of at most 80 (150 in a kernel file), at most 6 parameters. Relies on
# clang-format's layout: a function begins in column 0 and its closing brace stands alone there.
function finish_file() {
    if (file != "" && n_lines > 800) fault(file ":" n_lines, "the file has " n_lines " lines, at most 800")
}

function fault(place, text) {
    printf "%s: %s\n", place, text
    bad = 1
}

# Parameters in the last parenthesis at the top level of a signature.
function count_parameters(signature,    i, c, depth, commas, any) {
    for (i = 1; i <= length(signature); i++) {
        c = substr(signature, i, 1)
        if (c == "(" && ++depth == 1) { commas = any = 0; continue }
        if (c == ")") depth--
        if (depth == 1 && c == ",") commas++
        if (depth >= 1 && c != " ") any = 1
    }
    return any ? commas + 1 : 0
}

FNR == 1 {
    finish_file()
    file = FILENAME
    n_files++
    in_function = 0
    signature = ""
    limit = FILENAME ~ /_(avx512|avx2)\.c$|\.cuh?$/ ? 150 : 80
}

{ n_lines = FNR }

in_function {
    if ($0 == "}") {
        if (FNR - begin + 1 > limit)
            fault(FILENAME ":" begin, "the function has " FNR - begin + 1 " lines, at most " limit)
        in_function = 0
    }
    next
}

macro || /^#/ { macro = /\\$/; next }

/^[A-Za-z_]/ && /\(/ { signature = ""; begin = FNR; open = 1 }

open {
    signature = signature " " $0
    if (/;[ ]*(\/\*.*)?$/ || / = \{/) {
        open = 0
    } else if (/\{$/) {
        open = 0
        if (signature ~ /\)[ ]*\{$/) {
            in_function = 1
            sub(/\{$/, "", signature)
            n = count_parameters(signature)
            if (n > 6) fault(FILENAME ":" begin, "the function has " n " parameters, at most 6")
        }
    } else if (/\}$/) {
        open = 0
    }
}

END {
    finish_file()
    exit bad || n_files == 0
}
