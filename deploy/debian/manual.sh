#!/usr/bin/env bash
# manual.sh PROGRAM SECTION SUMMARY: the manual page of a program, made from its --help.
# Comes from: build.sh, which has sourced scripts/package_facts.sh. Goes to: stdout, as troff.
set -euo pipefail
program=$1 section=$2 summary=$3
name=$(basename "$program")

# Text of stdin in a form that troff prints unchanged: no backslash, hyphen or leading dot acts.
verbatim() {
  sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"
}

day=$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)
cat <<PAGE
.TH ${name^^} $section "$day" "Ballast $BALLAST_VERSION" "Ballast"
.SH NAME
$name \\- $summary
.SH DESCRIPTION
What \\fB$name \\-\\-help\\fR prints:
.PP
.nf
$("$program" --help | verbatim)
.fi
.SH SEE ALSO
.BR ballastd (8),
.BR ballastctl (1),
.BR ballastd.yaml (5)
.PP
The pages in /usr/share/doc/ballast\\-server/docs say more.
PAGE
