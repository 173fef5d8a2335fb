{{/* What the operator may do with the resources themselves. */}}
{{- define "operator.resources" -}}
- apiGroups: [install.istio.io]
  resources: [istiooperators]
  verbs: [get, list, watch, patch]
- apiGroups: [install.istio.io]
  resources: [istiooperators/status]
  verbs: [patch]
{{- end }}
