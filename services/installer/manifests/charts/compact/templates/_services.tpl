{{/* The containers of the services, which the chart compact puts into one Pod. Every chart of a service has a copy of this file; the original is lib/_services.tpl. */}}

{{/* Revisions of the control plane whose Services get names in certificates. */}}
{{- define "fairlead.revisions" -}}
{{- concat (list "") (list (.root.Values.revision | default "")) (.v.revisions | default list) | uniq | toJson -}}
{{- end }}

{{/* DNS names of Services: dict root, v, namespace, names. */}}
{{- define "fairlead.dnsNames" -}}
{{- $names := list -}}
{{- $domain := include "fairlead.domain" .root -}}
{{- range $rev := include "fairlead.revisions" . | fromJsonArray -}}
{{- range $name := $.names -}}
{{- $full := printf "%s%s.%s.svc" $name (ternary "" (printf "-%s" $rev) (eq $rev "")) $.namespace -}}
{{- $names = concat $names (list $full (printf "%s.%s" $full $domain)) -}}
{{- end -}}
{{- end -}}
{{ join "," $names }}
{{- end }}

{{/* The ca: dict root, v (as fairlead.caValues makes them), identities (dict ca, configWatcher, xdsServer, injector), port, opsPort, monitoring (name of that port), state (volume), shared (true: the services
share a Pod, and the ca hands root and keys to the others by a volume, because a Pod's ConfigMaps must be there before it starts). */}}
{{- define "fairlead.ca" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $watcher := include "fairlead.namespaceOf" (list .root "configWatcher") -}}
{{- $server := include "fairlead.namespaceOf" (list .root "xdsServer") -}}
{{- $injector := include "fairlead.namespaceOf" (list .root "injector") -}}
{{ include "fairlead.container" (dict "root" .root "v" .v "name" "ca" "monitoring" .monitoring "preStop" 3) }}
args:
  - --grpc-address=:{{ .port }}
  - --ops-address=:{{ .opsPort }}
  - --ca-dir=/var/lib/fairlead/ca/store
  - --kubernetes
  {{- with dig "trustBundleName" "" (.root.Values.global | default dict) }}
  - --root-configmap={{ . }}
  {{- end }}
  {{- if .shared }}
  - --jwks-file=/var/run/fairlead/jwks.json
  - --root-cert-out=/var/run/fairlead/root-cert.pem
  {{- end }}
  - --keys-namespaces={{ include "fairlead.namespaces" .root | fromJsonArray | join "," }}
  - --identity={{ .identities.ca }}
  - --forwarder={{ .identities.xdsServer }}
  - --dns-names={{ .identities.ca }}=ca.{{ $ns }}.svc,ca.{{ $ns }}.svc.{{ include "fairlead.domain" .root }}
  {{- $names := include "fairlead.dnsNames" (dict "root" .root "v" .v "namespace" $watcher "names" (list "config-watcher")) }}
  {{- $more := include "fairlead.dnsNames" (dict "root" .root "v" .v "namespace" $server "names" (list "istiod" "xds-server")) }}
  {{- if eq .identities.configWatcher .identities.xdsServer }}
  - --dns-names={{ .identities.xdsServer }}={{ $names }},{{ $more }}
  {{- else }}
  - --dns-names={{ .identities.configWatcher }}={{ $names }}
  - --dns-names={{ .identities.xdsServer }}={{ $more }}
  {{- end }}
  {{- /* By Service istiod API servers of other clusters come to the injector. */}}
  - --dns-names={{ .identities.injector }}={{ include "fairlead.dnsNames" (dict "root" .root "v" .v "namespace" $injector "names" (ternary (list "injector" "istiod") (list "injector") (eq $injector $server))) }}
  {{- with .v.remoteInjectorNamespace | default "fairlead-remote" }}
  - --remote-dns-names={{ . }}/injector={{ include "fairlead.dnsNames" (dict "root" $.root "v" $.v "namespace" . "names" (list "injector")) }}
  {{- end }}
  - --shutdown-grace=10s
  {{- include "fairlead.signerArgs" . | nindent 2 }}
  {{- with .v.workloadTTL }}
  - --workload-ttl={{ . }}
  {{- end }}
  {{- with .v.maxWorkloadTTL }}
  - --max-workload-ttl={{ . }}
  {{- end }}
  {{- include "fairlead.args" . | nindent 2 }}
env:
  {{- include "fairlead.env" . | nindent 2 }}
  {{- if include "fairlead.caSeveral" .v }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
ports:
  - {name: tls-ca, containerPort: {{ .port }}}
  - {name: {{ .monitoring }}, containerPort: {{ .opsPort }}}
volumeMounts:
  - {name: root, mountPath: /var/lib/fairlead/ca}
  {{- if .shared }}
  - {name: shared, mountPath: /var/run/fairlead}
  {{- end }}
  {{- include "fairlead.signerMounts" .v | nindent 2 }}
  {{- include "fairlead.apiMount" . | nindent 2 }}
  {{- with .v.volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* config-watcher: as the ca. */}}
{{- define "fairlead.config-watcher" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := include "fairlead.suffix" .root -}}
{{ include "fairlead.container" (dict "root" .root "v" .v "name" "config-watcher" "monitoring" .monitoring "preStop" 5) }}
args:
  - --grpc-address=:15060
  - --ops-address=:{{ .opsPort }}
  - --ca-address={{ if .shared }}127.0.0.1:15011{{ else }}{{ include "fairlead.caAddress" .root }}{{ end }}
  - --identity={{ .identities.configWatcher }}
  - --ca-identity={{ .identities.ca }}
  - --xds-server-identity={{ .identities.xdsServer }}
  - --system-namespace={{ $ns }}
  {{- include "fairlead.clientArgs" .shared | nindent 2 }}
  - --kubernetes
  {{- if include "fairlead.external" .root }}
  - --kubeconfig=/var/run/secrets/remote/config
  {{- end }}
  - --webhook-address=:15017
  {{- if and (dig "configValidation" true (.root.Values.global | default dict)) (not (include "fairlead.external" .root)) }}
  - --webhook-configuration=fairlead-validator{{ include "fairlead.clusterSuffix" .root }}
  {{- end }}
  {{- if not .shared }}
  - --peers=config-watcher-peers{{ $suffix }}.{{ $ns }}.svc:15060
  {{- end }}
  - --domain-suffix={{ include "fairlead.domain" .root }}
  {{- if hasKey .v "maxNamespaceMemory" }}
  - --max-namespace-memory={{ int64 .v.maxNamespaceMemory }}
  {{- end }}
  {{- if .v.jwksResolverExtraRootCA }}
  - --jwks-ca-file=/etc/fairlead/jwks-roots/extra.pem
  {{- end }}
  {{- if .v.multiTenant }}
  - --multi-tenant
  {{- end }}
  {{- with .root.Values.revision }}
  - --revision={{ . }}
  {{- end }}
  {{- if eq (include "fairlead.ownMeshConfig" .root) "true" }}
  - --mesh-config-file=/etc/istio/config/mesh
  {{- end }}
  {{- with dig "multiCluster" "clusterName" "" (.root.Values.global | default dict) }}
  - --cluster-id={{ . }}
  {{- end }}
  {{- if or (not .v.remoteClusters) (ne $ns "istio-system") }}
  - --remote-clusters=false
  {{- else }}
  {{- with .v.remoteClusterStaleAfter }}
  - --remote-cluster-stale-after={{ . }}
  {{- end }}
  {{- end }}
  {{- if or (not .v.registries) (ne $ns "istio-system") }}
  - --registries=false
  {{- end }}
  {{- if .v.registrySecret }}
  - --registry-dir=/etc/fairlead/registries
  {{- end }}
  {{- with .v.registryTimeout }}
  - --registry-timeout={{ . }}
  {{- end }}
  {{- range .v.registryAllowAddresses }}
  - --registry-allow-addresses={{ . }}
  {{- end }}
  {{- include "fairlead.mcsArgs" .v | nindent 2 }}
  {{- range .v.configSourceNamespaces }}
  - --config-source-namespaces={{ . }}
  {{- end }}
  {{- if include "fairlead.mcp" .v }}
  - --mcp-address=:15070
  {{- range .v.mcp.clients }}
  - --mcp-clients={{ . }}
  {{- end }}
  {{- range .v.mcp.allowAddresses }}
  - --mcp-allow-addresses={{ . }}
  {{- end }}
  {{- range .v.mcp.kinds }}
  - --mcp-kinds={{ . }}
  {{- end }}
  {{- range .v.mcp.namespaces }}
  - --mcp-namespaces={{ . }}
  {{- end }}
  {{- end }}
  {{- include "fairlead.args" . | nindent 2 }}
env:
  {{- include "fairlead.issuerEnv" . | nindent 2 }}
  {{- include "fairlead.env" . | nindent 2 }}
ports:
  - {name: tls-config, containerPort: 15060}
  - {name: https-webhook, containerPort: 15017}
  {{- if include "fairlead.mcp" .v }}
  - {name: tls-mcp, containerPort: 15070}
  {{- end }}
  - {name: {{ .monitoring }}, containerPort: {{ .opsPort }}}
volumeMounts:
  {{- include "fairlead.clientMounts" . | nindent 2 }}
  {{- include "fairlead.apiMount" . | nindent 2 }}
  {{- if eq (include "fairlead.ownMeshConfig" .root) "true" }}
  - {name: mesh-config, mountPath: /etc/istio/config, readOnly: true}
  {{- end }}
  {{- if include "fairlead.external" .root }}
  - {name: istio-kubeconfig, mountPath: /var/run/secrets/remote, readOnly: true}
  {{- end }}
  {{- if .v.jwksResolverExtraRootCA }}
  - {name: jwks-roots, mountPath: /etc/fairlead/jwks-roots, readOnly: true}
  {{- end }}
  {{- if .v.registrySecret }}
  - {name: registries, mountPath: /etc/fairlead/registries, readOnly: true}
  {{- end }}
  {{- with .v.volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Whether config-watcher serves other control planes by MCP over xDS: the service's values. */}}
{{- define "fairlead.mcp" -}}
{{- with .mcp }}{{ if or .clients .allowAddresses }}true{{ end }}{{ end }}
{{- end }}

{{/* The rule of a policy by which they call: the service's values. A certificate proves who calls; an address proves nothing, so that no other may call where there are addresses alone. */}}
{{- define "fairlead.mcpRule" -}}
{{- if include "fairlead.mcp" . }}
- ports:
    - {protocol: TCP, port: tls-mcp}
  {{- if .mcp.from }}
  from: {{- toYaml .mcp.from | nindent 4 }}
  {{- else if not .mcp.clients }}
  from:
    {{- range .mcp.allowAddresses }}
    - ipBlock: {cidr: {{ if contains "/" . }}{{ . }}{{ else if contains ":" . }}{{ . }}/128{{ else }}{{ . }}/32{{ end }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Whether the mesh's settings are in another ConfigMap than istio-system/istio, which config-watcher follows by itself. */}}
{{- define "fairlead.ownMeshConfig" -}}
{{- or (not (empty .Values.revision)) (ne .Release.Namespace "istio-system") -}}
{{- end }}

{{/* xds-server: as the ca. */}}
{{- define "fairlead.xds-server" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := include "fairlead.suffix" .root -}}
{{ include "fairlead.container" (dict "root" .root "v" .v "name" "xds-server" "monitoring" .monitoring "preStop" 5) }}
args:
  - --secure-address=:15012
  - --ops-address=:{{ .opsPort }}
  - --ca-address={{ if .shared }}127.0.0.1:15011{{ else }}{{ include "fairlead.caAddress" .root }}{{ end }}
  - --identity={{ .identities.xdsServer }}
  - --ca-identity={{ .identities.ca }}
  - --config-watcher-identity={{ .identities.configWatcher }}
  {{- include "fairlead.clientArgs" .shared | nindent 2 }}
  - --remote-clusters-file={{ ternary "/var/run/fairlead" "/etc/fairlead/jwks" (.shared | default false) }}/remote-clusters.json
  - --instance=$(POD_NAME)
  {{- if .shared }}
  # A Service does not lead to a Pod that is not ready.
  - --config-watcher-address=127.0.0.1:15060
  {{- else }}
  - --config-watcher-address=config-watcher{{ $suffix }}.{{ include "fairlead.namespaceOf" (list .root "configWatcher") }}.svc:15060
  - --peers=xds-server-peers{{ $suffix }}.{{ $ns }}.svc:15012
  {{- end }}
  {{- with .v.keepaliveMaxServerConnectionAge }}
  - --max-connection-age={{ . }}
  {{- end }}
  {{- if .v.plaintext }}
  - --plaintext-address=:15010
  {{- end }}
  {{- include "fairlead.args" . | nindent 2 }}
env:
  {{- include "fairlead.issuerEnv" . | nindent 2 }}
  {{- include "fairlead.env" . | nindent 2 }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
ports:
  - {name: tls-xds, containerPort: 15012}
  {{- if .v.plaintext }}
  - {name: grpc-xds, containerPort: 15010}
  {{- end }}
  - {name: {{ .monitoring }}, containerPort: {{ .opsPort }}}
volumeMounts:
  {{- include "fairlead.clientMounts" . | nindent 2 }}
  {{- with .v.volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Volumes with key and certificate: in memory, never on the node's disk. The directory used is one below, 0700. */}}
{{- define "fairlead.watcherState" -}}
# The last good state of what config-watcher reads is there, too. It outlives the container, which is what crashes; a new Pod reads everything again. It is each
# Pod's own, as its lock demands, and what it holds counts for the container's memory limit.
- name: {{ . }}
  emptyDir: {medium: Memory, sizeLimit: 128Mi}
{{- end }}

{{- define "fairlead.serverState" -}}
- name: {{ . }}
  emptyDir: {medium: Memory, sizeLimit: 4Mi}
{{- end }}

{{/* Roots that verify the servers of keys of tokens: dict root, v. config-watcher follows the file. */}}
{{- define "fairlead.keyRootsVolume" -}}
{{- if .v.jwksResolverExtraRootCA }}
- name: jwks-roots
  configMap:
    name: fairlead-jwks-roots{{ include "fairlead.suffix" .root }}
{{- end }}
{{- end }}

{{/* Declarations of registries in files, with the credentials that they name. config-watcher follows them. */}}
{{- define "fairlead.registriesVolume" -}}
{{- with .registrySecret }}
- name: registries
  secret:
    secretName: {{ . }}
{{- end }}
{{- end }}

{{- define "fairlead.keyRoots" -}}
{{- if .v.jwksResolverExtraRootCA }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: fairlead-jwks-roots{{ include "fairlead.suffix" .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
    istio.io/rev: {{ include "fairlead.rev" .root }}
data:
  extra.pem: {{ .v.jwksResolverExtraRootCA | quote }}
{{- end }}
{{- end }}

{{- define "fairlead.meshConfigVolume" -}}
{{- if eq (include "fairlead.ownMeshConfig" .) "true" }}
- name: mesh-config
  configMap:
    name: istio{{ include "fairlead.suffix" . }}
{{- end }}
{{- end }}

{{/* The root key, unless a signer has its keys elsewhere, and what this replica has issued: the service's values. Several replicas have volumes of the StatefulSet's
templates. Back the key up, encrypted; with another root nothing that runs trusts anything new. */}}
{{- define "fairlead.caVolume" -}}
{{- if not (and .storage (include "fairlead.caSeveral" .)) }}
- name: root
  {{- if .storage }}
  persistentVolumeClaim:
    claimName: ca-root
  {{- else }}
  emptyDir: {sizeLimit: 16Mi}
  {{- end }}
{{- end }}
{{- include "fairlead.signerVolumes" . }}
{{- end }}

{{/* Who each service is; all are in namespaces that global.namespaces names. */}}
{{- define "fairlead.identities" -}}
ca: {{ include "fairlead.namespaceOf" (list . "ca") }}/ca
configWatcher: {{ include "fairlead.namespaceOf" (list . "configWatcher") }}/config-watcher
xdsServer: {{ include "fairlead.namespaceOf" (list . "xdsServer") }}/xds-server
injector: {{ include "fairlead.namespaceOf" (list . "injector") }}/injector
{{- end }}

{{/* Rules of a policy by which config-watcher reaches servers of meshConfig.configSources, and servers of keys of tokens at other ports than those of fairlead.apiRule: the service's values. Which there are is known only when it runs. */}}
{{- define "fairlead.keyServerRules" -}}
{{- with .configSourcesEgress }}
{{ toYaml . }}
{{- end }}
{{- with .jwksEgress }}
{{ toYaml . }}
{{- end }}
{{- with .registryEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
