{{/* What the charts share. Every chart has a copy of this file, which `make generate` writes; the original is lib/_fairlead.tpl. */}}

{{/* The end of names: "-canary", or nothing. */}}
{{- define "fairlead.suffix" -}}{{ with .Values.revision }}-{{ . }}{{ end }}{{- end }}

{{/* The end of names of what has no namespace: other installations have theirs. */}}
{{- define "fairlead.clusterSuffix" -}}{{ include "fairlead.suffix" . }}{{ if ne .Release.Namespace "istio-system" }}-{{ .Release.Namespace }}{{ end }}{{- end }}

{{/* The same of the namespace of another service: list root, key of global.namespaces. */}}
{{- define "fairlead.clusterSuffixOf" -}}
{{- $ns := include "fairlead.namespaceOf" . -}}
{{ include "fairlead.suffix" (index . 0) }}{{ if ne $ns "istio-system" }}-{{ $ns }}{{ end }}
{{- end }}

{{- define "fairlead.rev" -}}{{ .Values.revision | default "default" }}{{- end }}

{{/* Labels of every object: list root, app. */}}
{{- define "fairlead.labels" -}}
{{- $root := index . 0 -}}
app: {{ index . 1 }}
app.kubernetes.io/part-of: fairlead
{{- end }}

{{/* Labels that choose the Pods of a service: list root, app. There is one ca for all revisions. */}}
{{- define "fairlead.selector" -}}
app: {{ index . 1 }}
{{- if ne (index . 1) "ca" }}
istio.io/rev: {{ include "fairlead.rev" (index . 0) }}
{{- end }}
{{- end }}

{{/* The namespace of a service, its own or that of the control plane: list root, key of global.namespaces. */}}
{{- define "fairlead.namespaceOf" -}}
{{- $root := index . 0 -}}
{{- $g := $root.Values.global | default dict -}}
{{- dig "namespaces" (index . 1) "" $g | default $g.istioNamespace | default $root.Release.Namespace -}}
{{- end }}

{{/* The namespaces of all services. */}}
{{- define "fairlead.namespaces" -}}
{{- list (include "fairlead.namespaceOf" (list . "ca")) (include "fairlead.namespaceOf" (list . "configWatcher")) (include "fairlead.namespaceOf" (list . "xdsServer")) (include "fairlead.namespaceOf" (list . "injector")) | uniq | toJson -}}
{{- end }}

{{- define "fairlead.domain" -}}{{ dig "proxy" "clusterDomain" "cluster.local" (.Values.global | default dict) }}{{- end }}

{{- define "fairlead.trustDomain" -}}{{ dig "trustDomain" "cluster.local" (.Values.meshConfig | default dict) }}{{- end }}

{{/* Istio's levels have scopes, "default:info,ads:debug"; the services have one level. */}}
{{- define "fairlead.logLevel" -}}
{{- $all := dig "logging" "level" "info" (.Values.global | default dict) | toString -}}
{{- $default := regexFind "(^|,)(default|all):[a-z]+" $all | splitList ":" | last -}}
{{- $level := $default | default $all -}}
{{- if has $level (list "debug" "info" "warn" "error") }}{{ $level }}{{ else if has $level (list "fatal" "none") }}error{{ else }}info{{ end -}}
{{- end }}

{{/* The image of a service: dict root, v (the service's values), name. */}}
{{- define "fairlead.image" -}}
{{- $g := .root.Values.global | default dict -}}
{{- $image := .v.image | default .name -}}
{{- if contains "/" $image }}{{ $image }}{{ else -}}
{{- $tag := .v.tag | default $g.tag | toString -}}
{{- $variant := .v.variant | default $g.variant -}}
{{ .v.hub | default $g.hub | trimSuffix "/" }}/{{ $image }}{{ if $tag }}:{{ $tag }}{{ with $variant }}-{{ . }}{{ end }}{{ end }}
{{- end }}
{{- end }}

{{- define "fairlead.caAddress" -}}
{{- dig "caAddress" "" (.Values.global | default dict) | default (printf "ca.%s.svc:15012" (include "fairlead.namespaceOf" (list . "ca"))) -}}
{{- end }}

{{/* Whether this is a cluster whose control plane is elsewhere; "true" or nothing. */}}
{{- define "fairlead.isRemote" -}}
{{- if and (dig "enabled" false (.Values.remote | default dict)) (not (dig "enabled" false (.Values.pilot | default dict))) }}true{{ end -}}
{{- end }}

{{/* Whether such a cluster uses the injector of the control plane's; "true" or nothing. */}}
{{- define "fairlead.injectorElsewhere" -}}
{{- $remote := .Values.istiodRemote | default dict -}}
{{- if and (include "fairlead.isRemote" .) (or $remote.injectionURL $remote.injectionPath) }}true{{ end -}}
{{- end }}

{{/* Whether the mesh's configuration is in another cluster, which Secret istio-kubeconfig names; "true" or nothing. */}}
{{- define "fairlead.external" -}}
{{- $env := .Values.env | default (dig "env" dict (.Values.pilot | default dict)) -}}
{{- if or (dig "externalIstiod" false (.Values.global | default dict)) (eq (toString (dig "EXTERNAL_ISTIOD" "" $env)) "true") }}true{{ end -}}
{{- end }}

{{/* Whether the configuration of a control plane elsewhere is in this cluster; "true" or nothing. */}}
{{- define "fairlead.isConfigCluster" -}}
{{- if and (include "fairlead.isRemote" .) (dig "configCluster" false (.Values.global | default dict)) }}true{{ end -}}
{{- end }}

{{/* The volume with the credential for the cluster that has the configuration. */}}
{{- define "fairlead.configClusterVolume" -}}
{{- if include "fairlead.external" . }}
- name: istio-kubeconfig
  secret: {secretName: istio-kubeconfig}
{{- end }}
{{- end }}

{{/* The name by which workloads of such a cluster reach the control plane. Service istiod leads to its address, and xds-server passes on what is for the ca. */}}
{{- define "fairlead.istiodAddress" -}}
istiod{{ include "fairlead.suffix" . }}.{{ include "fairlead.namespaceOf" (list . "xdsServer") }}.svc:15012
{{- end }}

{{/* What proxies are told by the installation: where the control plane is. */}}
{{- define "fairlead.proxyConfig" -}}
{{- $g := .Values.global | default dict -}}
{{- if include "fairlead.isRemote" . -}}
{{- $own := dict "discoveryAddress" (include "fairlead.istiodAddress" .) "proxyMetadata" (dict "CA_ADDR" ($g.caAddress | default (include "fairlead.istiodAddress" .))) -}}
{{- with $g.meshID }}{{ $_ := set $own "meshId" . }}{{ end -}}
{{- toJson $own -}}
{{- else -}}
{{- $own := dict
  "discoveryAddress" ($g.remotePilotAddress | default (printf "istiod%s.%s.svc" (include "fairlead.suffix" .) (include "fairlead.namespaceOf" (list . "xdsServer"))) | printf "%s:15012")
  "proxyMetadata" (dict "CA_ADDR" (include "fairlead.caAddress" .)) -}}
{{- with $g.meshID }}{{ $_ := set $own "meshId" . }}{{ end -}}
{{- toJson $own -}}
{{- end -}}
{{- end }}

{{/* replicas of a Deployment; none if an autoscaler decides: values of the service. */}}
{{- define "fairlead.replicas" -}}
{{- if not .autoscaleEnabled }}
replicas: {{ .replicaCount | default 1 }}
{{- end }}
{{- end }}

{{/* The autoscaler of a Deployment: dict root, v, name, app. */}}
{{- define "fairlead.autoscaler" -}}
{{- if .v.autoscaleEnabled }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list .root .app) | nindent 4 }}
spec:
  minReplicas: {{ .v.autoscaleMin }}
  maxReplicas: {{ .v.autoscaleMax }}
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ dig "targetAverageUtilization" 80 (.v.cpu | default dict) }}}}
    {{- with dig "targetAverageUtilization" 0 (.v.memory | default dict) }}
    - type: Resource
      resource: {name: memory, target: {type: Utilization, averageUtilization: {{ . }}}}
    {{- end }}
    {{- with .v.autoscaleStreams }}
    - type: Pods
      pods: {metric: {name: fairlead_xds_server_streams}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
    {{- end }}
  {{- with .v.autoscaleBehavior }}
  behavior: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The disruption budget of a Deployment: dict root, v, name, app, selector. With one replica it must not keep a node from being drained. */}}
{{- define "fairlead.budget" -}}
{{- $several := gt (int (ternary .v.autoscaleMin .v.replicaCount (.v.autoscaleEnabled | default false))) 1 }}
{{- if dig "defaultPodDisruptionBudget" "enabled" true (.root.Values.global | default dict) }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list .root .app) | nindent 4 }}
spec:
  {{ if $several }}minAvailable: 1{{ else }}maxUnavailable: 1{{ end }}
  selector:
    matchLabels: {{- .selector | nindent 6 }}
{{- end }}
{{- end }}

{{/* What Deployments have beside their Pods: values. */}}
{{- define "fairlead.strategy" -}}
strategy:
  type: RollingUpdate
  rollingUpdate: {maxUnavailable: {{ .rollingMaxUnavailable | default 0 }}, maxSurge: {{ .rollingMaxSurge | default 1 }}}
revisionHistoryLimit: 5
{{- end }}

{{/* The label of Pods that Service istiod leads to. A Pod gets the ports that it has by name: 443 is that of the injector, all others are those of xds-server. */}}
{{- define "fairlead.istiodLabel" -}}fairlead.dev/part-of: istiod{{- end }}

{{/* Metadata of Pods: dict root, v, app, selector. */}}
{{- define "fairlead.podMetadata" -}}
labels:
  {{- .selector | nindent 2 }}
  {{- if has .app (list "xds-server" "fairlead" "injector") }}
  {{ include "fairlead.istiodLabel" . }}
  {{- end }}
  app.kubernetes.io/part-of: fairlead
  sidecar.istio.io/inject: "false"
  {{- with .v.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: "15014"
  {{- with .v.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Where Pods run: dict root, v, selector. */}}
{{- define "fairlead.scheduling" -}}
{{- $g := .root.Values.global | default dict }}
{{- with .v.nodeSelector | default $g.defaultNodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .v.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .v.tolerations | default $g.defaultTolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $g.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $g.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- if .spread }}
topologySpreadConstraints:
  {{- if .v.topologySpreadConstraints }}
  {{- toYaml .v.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- .selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The Pod's security context: values. */}}
{{- define "fairlead.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1337
runAsGroup: 1337
fsGroup: 1337
seccompProfile: {{- .seccompProfile | default (dict "type" "RuntimeDefault") | toYaml | nindent 2 }}
{{- end }}

{{- define "fairlead.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The fields of a container that all services have: dict root, v, name, monitoring (name of the port), preStop (seconds). */}}
{{- define "fairlead.container" -}}
name: {{ .name }}
image: {{ include "fairlead.image" . }}
imagePullPolicy: {{ dig "imagePullPolicy" "" (.root.Values.global | default dict) | default "IfNotPresent" }}
startupProbe:
  httpGet: {path: /livez, port: {{ .monitoring }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ .monitoring }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ .monitoring }}}
  periodSeconds: 2
  timeoutSeconds: 2
lifecycle:
  # Until every node has heard that this Pod ends, new connections may still come.
  preStop: {sleep: {seconds: {{ .preStop }}}}
resources: {{- .v.resources | default dict | toYaml | nindent 2 }}
securityContext: {{- include "fairlead.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* Variables of a container: dict root, v, more (text). */}}
{{- define "fairlead.env" -}}
# The collector works harder from 95 % of the container's limit on: so many MiB, each taken for 1,000,000 bytes.
- name: MEMORY_LIMIT_MIB
  valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}
- name: GOMEMLIMIT
  value: $(MEMORY_LIMIT_MIB)000000
{{- range $name, $value := .v.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .v.envVarFrom }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Who issues the tokens that callers show; the ca writes the ConfigMap. */}}
{{- define "fairlead.issuerEnv" -}}
- name: TOKEN_ISSUER
  valueFrom: {configMapKeyRef: {name: fairlead-jwks, key: issuer}}
{{- end }}

{{- define "fairlead.args" -}}
- --log-level={{ include "fairlead.logLevel" .root }}
- --trust-domain={{ include "fairlead.trustDomain" .root }}
{{- range .v.extraContainerArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* How config-watcher and xds-server get their certificate and verify tokens: whether they share a Pod with the ca. */}}
{{- define "fairlead.clientArgs" -}}
{{- $jwks := ternary "/var/run/fairlead/jwks.json" "/etc/fairlead/jwks/jwks.json" (. | default false) -}}
- --ca-token-file=/var/run/secrets/tokens/istio-token
- --root-cert-file={{ ternary "/var/run/fairlead" "/var/run/secrets/istio" (. | default false) }}/root-cert.pem
- --state-dir=/var/lib/fairlead/state
- --jwks-file={{ $jwks }}
- --admin-jwks-file={{ $jwks }}
- --issuer=$(TOKEN_ISSUER)
{{- end }}

{{/* Mounts of config-watcher and xds-server: dict state (name of the volume), shared. */}}
{{- define "fairlead.clientMounts" -}}
- {name: {{ .state }}, mountPath: /var/lib/fairlead}
- {name: token, mountPath: /var/run/secrets/tokens, readOnly: true}
{{- if .shared }}
- {name: shared, mountPath: /var/run/fairlead, readOnly: true}
{{- else }}
- {name: root-cert, mountPath: /var/run/secrets/istio, readOnly: true}
- {name: jwks, mountPath: /etc/fairlead/jwks, readOnly: true}
{{- end }}
{{- end }}

{{- define "fairlead.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}
{{- end }}

{{/* The ConfigMap with the roots of the mesh, which the ca keeps in every namespace. */}}
{{- define "fairlead.rootConfigMap" -}}
{{ dig "trustBundleName" "" (.Values.global | default dict) | default "istio-ca-root-cert" }}
{{- end }}

{{/* Volumes of these. The ca makes both ConfigMaps when it starts for the first time; until then the Pods wait for them. */}}
{{- define "fairlead.clientVolumes" -}}
{{ include "fairlead.tokenVolume" . }}
- name: root-cert
  configMap:
    name: {{ include "fairlead.rootConfigMap" . }}
- name: jwks
  configMap:
    name: fairlead-jwks
{{- end }}

{{/* The token for Kubernetes' API, where client-go looks for it. */}}
{{- define "fairlead.apiMount" -}}
- {name: kube-api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "fairlead.apiVolume" -}}
- name: kube-api-access
  projected:
    sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* Peers of a NetworkPolicy that are the Pods of a service: list root, app, namespace. Those of every revision. */}}
{{- define "fairlead.peer" -}}
- podSelector:
    matchLabels:
      app: {{ index . 1 }}
  {{- if ne (index . 2) (index . 0).Release.Namespace }}
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ index . 2 }}
  {{- end }}
{{- end }}

{{/* Rules that every policy has. */}}
{{- define "fairlead.monitoringRule" -}}
- from:
    - namespaceSelector:
        matchLabels:
          fairlead.dev/monitoring: "true"
  ports:
    - {protocol: TCP, port: {{ . }}}
{{- end }}

{{- define "fairlead.dnsRule" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchLabels:
          k8s-app: kube-dns
    # NodeLocal DNSCache, where a cluster has it.
    - ipBlock: {cidr: 169.254.20.10/32}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{/* Kubernetes' API: no selector can name it, so an overlay that knows its address may narrow this. */}}
{{- define "fairlead.apiRule" -}}
- ports:
    - {protocol: TCP, port: 443}
    - {protocol: TCP, port: 6443}
{{- end }}

{{- define "fairlead.policies" -}}{{ dig "networkPolicy" "enabled" true (.Values.global | default dict) }}{{- end }}

{{- define "fairlead.serviceFields" -}}
{{- with .ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .ipFamilies }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether a variable of istiod's is true among a service's: dict v, name. */}}
{{- define "fairlead.envIsTrue" -}}
{{- if has (get (.v.env | default dict) .name | toString | lower) (list "true" "t" "1") }}true{{ end -}}
{{- end }}

{{/* config-watcher's flags of the Multi-Cluster Services API, by istiod's variables: the service's values. */}}
{{- define "fairlead.mcsArgs" -}}
{{- $discovery := include "fairlead.envIsTrue" (dict "v" . "name" "ENABLE_MCS_SERVICE_DISCOVERY") -}}
{{- $host := include "fairlead.envIsTrue" (dict "v" . "name" "ENABLE_MCS_HOST") -}}
{{- $local := include "fairlead.envIsTrue" (dict "v" . "name" "ENABLE_MCS_CLUSTER_LOCAL") -}}
{{- if and $host (not $discovery) }}{{ fail "pilot.env.ENABLE_MCS_HOST has no effect without ENABLE_MCS_SERVICE_DISCOVERY: set both, or remove it" }}{{ end -}}
{{- if and $local (not $host) }}{{ fail "pilot.env.ENABLE_MCS_CLUSTER_LOCAL has no effect without ENABLE_MCS_HOST: set both, or remove it" }}{{ end -}}
{{- with $discovery }}
- --mcs-service-discovery
{{- end }}
{{- with $host }}
- --mcs-host
{{- end }}
{{- with $local }}
- --mcs-cluster-local
{{- end }}
{{- with include "fairlead.envIsTrue" (dict "v" . "name" "ENABLE_MCS_AUTO_EXPORT") }}
- --mcs-auto-export
{{- end }}
{{- end }}
