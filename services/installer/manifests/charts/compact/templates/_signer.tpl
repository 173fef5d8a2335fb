{{/* What the ca has for its signer: the file, its volumes, rights and ways out. Every chart of a service has a copy of this file; the original is lib/_signer.tpl. */}}

{{/* A signer as a mapping, of one that is a mapping or the text of a file. */}}
{{- define "fairlead.signerMap" -}}
{{- if kindIs "string" . -}}
{{- $parsed := fromYaml . -}}
{{- with $parsed.Error }}{{ fail (printf "values.ca.signer: the text is no YAML: %s" .) }}{{ end -}}
{{ toJson $parsed }}
{{- else -}}
{{ toJson (. | default dict) }}
{{- end -}}
{{- end }}

{{/* The text of the signer file; nothing if the ca signs with the root on its volume: the service's values. A signer without a name has that of its kind. */}}
{{- define "fairlead.signerFile" -}}
{{- if .signer -}}
{{- if kindIs "string" .signer -}}
{{ .signer }}
{{- else -}}
{{- $name := "signer" -}}
{{- range list "intermediate" "caCerts" "service" "istio" "stepCA" "vault" "kubernetesCSR" "certManager" -}}
{{- if index $.signer . }}{{ $name = lower . }}{{ end -}}
{{- end -}}
{{ toYaml (merge (deepCopy .signer) (dict "apiVersion" "ca.fairlead.dev/v1" "kind" "Signer" "name" $name)) }}
{{- end -}}
{{- else if .keysSecret -}}
apiVersion: ca.fairlead.dev/v1
kind: Signer
name: own
intermediate:
  keys:
    secret: {namespace: {{ .keysNamespace }}, name: {{ .keysSecret }}}
  selfSigned: {}
{{- end -}}
{{- end }}

{{/* The signers that have rights and ways out, a list in JSON: the one of the file, and those that a swap comes from or goes to: the service's values. */}}
{{- define "fairlead.signers" -}}
{{- $all := list -}}
{{- with include "fairlead.signerFile" . }}{{ $all = append $all (include "fairlead.signerMap" . | fromJson) }}{{ end -}}
{{- range .furtherSigners }}{{ $all = append $all (include "fairlead.signerMap" . | fromJson) }}{{ end -}}
{{ toJson $all }}
{{- end }}

{{/* The ca's values with what the helpers of this file read: dict root, v. A chart that makes several replicas fails if they cannot share the keys. */}}
{{- define "fairlead.caValues" -}}
{{- $v := merge (dict "keysNamespace" .root.Release.Namespace) (deepCopy .v) -}}
{{- $signers := include "fairlead.signers" $v | fromJsonArray -}}
{{- if gt (int ($v.replicaCount | default 1)) 1 -}}
{{- if not (include "fairlead.signerFile" $v) -}}
{{- fail (printf "values.ca.replicaCount is %d, and the ca's root is on a volume that one process owns: set values.ca.keysSecret or values.ca.signer (docs/guide/ca-replicas.md), or replicaCount to 1" (int $v.replicaCount)) -}}
{{- end -}}
{{- range $signers -}}
{{- $keys := dig "intermediate" "keys" dict . -}}
{{- if $keys.directory -}}
{{- fail (printf "values.ca.replicaCount is %d, and a signer has its keys in a directory, which one process owns: have it use keys.secret or keys.kms (docs/guide/ca-replicas.md), or set replicaCount to 1" (int $v.replicaCount)) -}}
{{- end -}}
{{- with $keys.kms -}}
{{- if and (eq (.type | default "") "pkcs11") (not .shared) -}}
{{- fail (printf "values.ca.replicaCount is %d, and intermediate.keys.kms is a token that is not shared: set its field shared if every replica reaches it, or replicaCount to 1" (int $v.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- if .istio -}}
{{- fail (printf "values.ca.replicaCount is %d, and signer istio signs no DNS names: the ca signs those with a root on its volume, which one process owns; set replicaCount to 1" (int $v.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $v }}
{{- end }}

{{- define "fairlead.caSeveral" -}}{{ if gt (int (.replicaCount | default 1)) 1 }}true{{ end }}{{- end }}

{{/* Flags that say who signs, and where several replicas meet: dict root, v. The record of a ca with a signer file is in a Secret, so that replicas can be added later. */}}
{{- define "fairlead.signerArgs" -}}
{{- $ns := .root.Release.Namespace -}}
{{- if include "fairlead.signerFile" .v }}
- --signer-file=/etc/fairlead/signer/signer.yaml
- --state-secret={{ $ns }}/ca-state
- --lease=ca
{{- end }}
{{- if include "fairlead.caSeveral" .v }}
- --peers=ca-peers.{{ $ns }}.svc:15012
- --replica=$(POD_NAME)
{{- end }}
{{- end }}

{{/* Whether the Secret cacerts is mounted where a signer of this kind reads it: no volume of signerVolumes is there. Writes the directories, a list in JSON: the service's values. */}}
{{- define "fairlead.cacertsDirectories" -}}
{{- $out := list -}}
{{- $taken := list -}}
{{- range .signerVolumes }}{{ $taken = append $taken (trimSuffix "/" .mountPath) }}{{ end -}}
{{- range .volumeMounts }}{{ $taken = append $taken (trimSuffix "/" (.mountPath | default "")) }}{{ end -}}
{{- range include "fairlead.signers" . | fromJsonArray -}}
{{- $dir := dig "caCerts" "directory" "" . | trimSuffix "/" -}}
{{- if and $dir (not (has $dir $taken)) }}{{ $out = append $out $dir }}{{ end -}}
{{- end -}}
{{ toJson (uniq $out) }}
{{- end }}

{{/* Mounts of the file, and of what it names: the service's values. A directory without subPath, because the kubelet exchanges no file of another mount. */}}
{{- define "fairlead.signerMounts" -}}
{{- if include "fairlead.signerFile" . }}
- {name: signer, mountPath: /etc/fairlead/signer, readOnly: true}
{{- end }}
{{- range include "fairlead.cacertsDirectories" . | fromJsonArray }}
- {name: cacerts, mountPath: {{ . | quote }}, readOnly: true}
{{- end }}
{{- range .signerVolumes }}
- {name: {{ printf "signer-%s" .name | quote }}, mountPath: {{ .mountPath | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Their volumes: the service's values. None is waited for: the signer in use goes on while a file of the next one is missing, and the log names it. */}}
{{- define "fairlead.signerVolumes" -}}
{{- if include "fairlead.signerFile" . }}
- name: signer
  configMap: {name: ca-signer}
{{- end }}
{{- if include "fairlead.cacertsDirectories" . | fromJsonArray }}
- name: cacerts
  secret: {secretName: cacerts, optional: true, defaultMode: 0440}
{{- end }}
{{- range .signerVolumes }}
- name: {{ printf "signer-%s" .name | quote }}
  {{- if .secret }}
  secret: {secretName: {{ .secret | quote }}, optional: true, defaultMode: 0440}
  {{- else if .configMap }}
  configMap: {name: {{ .configMap | quote }}, optional: true}
  {{- else if .audience }}
  projected:
    sources:
      - serviceAccountToken: {audience: {{ .audience | quote }}, expirationSeconds: 3600, path: token}
  {{- else }}
  {{- fail (printf "values.ca.signerVolumes: %s has no secret, configMap or audience; write one" .name) }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The file: dict root, v. The ca follows it: a change swaps signers while it runs, and starts no Pod anew. */}}
{{- define "fairlead.signerConfigMap" -}}
{{- with include "fairlead.signerFile" .v }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: ca-signer
  namespace: {{ $.root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list $.root "ca") | nindent 4 }}
data:
  signer.yaml: |
    {{- . | nindent 4 }}
{{- end }}
{{- end }}

{{/* A role and its binding to the ca: dict root, account, name, namespace (none: in every one), rules (text). */}}
{{- define "fairlead.caRole" -}}
{{- $kind := ternary "Role" "ClusterRole" (not (empty .namespace)) -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* Rights of the ca that its signers need, and nothing without one: dict root, v, account. */}}
{{- define "fairlead.signerRBAC" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := ternary "" (printf "-%s" $ns) (eq $ns "istio-system") -}}
{{- if include "fairlead.signerFile" .v }}
# What a ca must find again after a restart, which its replicas share; one of them, by the Lease, takes the steps of a swap.
{{ include "fairlead.caRole" (dict "root" .root "account" .account "name" "fairlead-ca-state" "namespace" $ns "rules" (include "fairlead.stateRules" .)) }}
{{- end }}
{{- $cluster := list -}}
{{- $in := dict -}}
{{- range $signer := include "fairlead.signers" .v | fromJsonArray -}}
{{- with dig "intermediate" "keys" "secret" dict $signer -}}
{{- $_ := set $in .namespace (concat (get $in .namespace | default list) (list
  (dict "apiGroups" (list "") "resources" (list "secrets") "verbs" (list "create"))
  (dict "apiGroups" (list "") "resources" (list "secrets") "resourceNames" (list .name) "verbs" (list "get" "update")))) -}}
{{- end -}}
{{- with $signer.kubernetesCSR -}}
{{- $cluster = append $cluster (dict "apiGroups" (list "certificates.k8s.io") "resources" (list "certificatesigningrequests") "verbs" (list "create" "get" "list" "watch" "delete")) -}}
{{- if .approve -}}
{{- $names := list -}}
{{- if .signer }}{{ $names = append $names (printf "%s/%s" .domain .signer) }}{{ end -}}
{{- $domain := .domain -}}
{{- range .profiles }}{{ $names = append $names (printf "%s/%s" $domain .name) }}{{ end -}}
{{- $cluster = concat $cluster (list
  (dict "apiGroups" (list "certificates.k8s.io") "resources" (list "certificatesigningrequests/approval") "verbs" (list "update"))
  (dict "apiGroups" (list "certificates.k8s.io") "resources" (list "signers") "resourceNames" (uniq $names) "verbs" (list "approve"))) -}}
{{- end -}}
{{- end -}}
{{- with $signer.certManager -}}
{{- $requests := list (dict "apiGroups" (list "cert-manager.io") "resources" (list "certificaterequests") "verbs" (list "create" "get" "list" "watch" "delete")) -}}
{{- if .approve -}}
{{- $requests = append $requests (dict "apiGroups" (list "cert-manager.io") "resources" (list "certificaterequests/status") "verbs" (list "update")) -}}
{{- $names := list -}}
{{- $namespace := .namespace -}}
{{- range concat (list (.issuerRef | default dict)) (.profiles | default list) -}}
{{- $ref := .issuerRef | default . -}}
{{- if $ref.name -}}
{{- $kind := $ref.kind | default "Issuer" -}}
{{- $group := $ref.group | default "cert-manager.io" -}}
{{- $names = append $names (printf "%ss.%s/%s%s" (lower $kind) $group (ternary "" (printf "%s." $namespace) (hasPrefix "Cluster" $kind)) $ref.name) -}}
{{- end -}}
{{- end -}}
{{- /* cert-manager asks about signers in no namespace. */ -}}
{{- $cluster = append $cluster (dict "apiGroups" (list "cert-manager.io") "resources" (list "signers") "resourceNames" (uniq $names) "verbs" (list "approve")) -}}
{{- end -}}
{{- $_ := set $in .namespace (concat (get $in .namespace | default list) $requests) -}}
{{- end -}}
{{- range list ($signer.kubernetesCSR | default dict) ($signer.certManager | default dict) -}}
{{- range $of := concat (list .) (.profiles | default list) -}}
{{- range $field, $resource := dict "configMap" "configmaps" "secret" "secrets" -}}
{{- with dig "roots" $field dict $of -}}
{{- $_ := set $in .namespace (append (get $in .namespace | default list) (dict "apiGroups" (list "") "resources" (list $resource) "resourceNames" (list .name) "verbs" (list "get"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $namespace, $rules := $in }}
{{ include "fairlead.caRole" (dict "root" $.root "account" $.account "name" (printf "fairlead-ca-signer%s" $suffix) "namespace" $namespace "rules" (toYaml (uniq $rules))) }}
{{- end }}
{{- with $cluster }}
{{ include "fairlead.caRole" (dict "root" $.root "account" $.account "name" (printf "fairlead-ca-signer%s" $suffix) "namespace" "" "rules" (toYaml (uniq .))) }}
{{- end }}
{{- end }}

{{- define "fairlead.stateRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create] # a name cannot be asked for here
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [ca-state]
  verbs: [get, list, watch, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [ca]
  verbs: [get, update]
{{- end }}

{{/* Rules of a policy by which the ca reaches its signers, by what their addresses say: the service's values. Ports are those of Pods, where a signer is in the cluster. */}}
{{- define "fairlead.signerRules" -}}
{{- $rules := list -}}
{{- range include "fairlead.signers" . | fromJsonArray -}}
{{- range list (dig "vault" "address" "" .) (dig "intermediate" "vault" "address" "" .) (dig "stepCA" "url" "" .) (dig "istio" "address" "" .) (dig "service" "address" "" .) -}}
{{- if and . (not (hasPrefix "unix:" .)) -}}
{{- $host := regexReplaceAll "/.*$" (regexReplaceAll "^[a-z]+:/+" . "") "" -}}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" | default (ternary "80" "443" (hasPrefix "http://" .)) | int -}}
{{- $host = regexReplaceAll ":[0-9]+$" $host "" | trimPrefix "[" | trimSuffix "]" -}}
{{- $rule := dict "ports" (list (dict "protocol" "TCP" "port" $port)) -}}
{{- if regexMatch "^[0-9.]+$" $host -}}
{{- $_ := set $rule "to" (list (dict "ipBlock" (dict "cidr" (printf "%s/32" $host)))) -}}
{{- else if contains ":" $host -}}
{{- $_ := set $rule "to" (list (dict "ipBlock" (dict "cidr" (printf "%s/128" $host)))) -}}
{{- else if regexMatch "^[^.]+\\.[^.]+\\.svc(\\.|$)" $host -}}
{{- $_ := set $rule "to" (list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" (index (splitList "." $host) 1))))) -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with concat $rules (.signerEgress | default list) | uniq }}
{{ toYaml . }}
{{- end }}
{{- end }}
