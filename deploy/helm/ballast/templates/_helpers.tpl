{{- /* (list GIB A B): A/B of GIB as a size of ballastd's configuration. */ -}}
{{- define "ballast.share" -}}
{{- $gib := int (index . 0) }}{{ $part := index . 1 }}{{ $whole := index . 2 -}}
{{- if mod (mul $gib $part) $whole -}}
{{ div (mul 1024 $gib $part) $whole }}MiB
{{- else -}}
{{ div (mul $gib $part) $whole }}GiB
{{- end -}}
{{- end -}}
