{{/* What the services have beside their Pods. Every chart of a service has a copy of this file; the original is lib/_objects.tpl. */}}

{{/* Rights of config-watcher: dict root, v, account. */}}
{{- define "fairlead.watcherRBAC" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := include "fairlead.suffix" .root -}}
{{- $cluster := include "fairlead.clusterSuffix" .root }}
---
# config-watcher is the only service that reads mesh configuration from Kubernetes, and it reads nothing else. It changes nothing but
# statuses; it creates the mesh's GatewayClasses and XMesh, and with ENABLE_MCS_AUTO_EXPORT ServiceExports.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: fairlead-config-watcher{{ $cluster }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [services, pods, nodes, namespaces]
    verbs: [get, list, watch]
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [get, list, watch]
  - apiGroups: [networking.k8s.io]
    resources: [ingresses, ingressclasses]
    verbs: [get, list, watch]
  - apiGroups: [networking.k8s.io]
    resources: [ingresses/status]
    verbs: [patch]
  # To learn at once of kinds that come and go.
  - apiGroups: [apiextensions.k8s.io]
    resources: [customresourcedefinitions]
    verbs: [get, list, watch]
  - apiGroups: [networking.istio.io]
    resources:
      - destinationrules
      - envoyfilters
      - gateways
      - proxyconfigs
      - serviceentries
      - sidecars
      - virtualservices
      - workloadentries
      - workloadgroups
    verbs: [get, list, watch]
  - apiGroups: [networking.istio.io]
    resources:
      - destinationrules/status
      - envoyfilters/status
      - gateways/status
      - proxyconfigs/status
      - serviceentries/status
      - sidecars/status
      - virtualservices/status
      - workloadentries/status
      - workloadgroups/status
    verbs: [patch]
  - apiGroups: [security.istio.io]
    resources: [authorizationpolicies, peerauthentications, requestauthentications]
    verbs: [get, list, watch]
  - apiGroups: [security.istio.io]
    resources: [authorizationpolicies/status, peerauthentications/status, requestauthentications/status]
    verbs: [patch]
  - apiGroups: [telemetry.istio.io]
    resources: [telemetries]
    verbs: [get, list, watch]
  - apiGroups: [telemetry.istio.io]
    resources: [telemetries/status]
    verbs: [patch]
  - apiGroups: [extensions.istio.io]
    resources: [wasmplugins, trafficextensions]
    verbs: [get, list, watch]
  - apiGroups: [extensions.istio.io]
    resources: [wasmplugins/status, trafficextensions/status]
    verbs: [patch]
  # The mesh's own GatewayClasses and XMesh, once, where the definitions are there.
  - apiGroups: [gateway.networking.k8s.io]
    resources: [gatewayclasses]
    verbs: [create]
  - apiGroups: [gateway.networking.x-k8s.io]
    resources: [xmeshes]
    verbs: [get, list, create]
  - apiGroups: [gateway.networking.x-k8s.io]
    resources: [xmeshes/status]
    verbs: [patch]
  # Which revision a tag stands for, by labels: that one writes the status of what has no revision.
  - apiGroups: [admissionregistration.k8s.io]
    resources: [mutatingwebhookconfigurations]
    verbs: [list, watch]
  - apiGroups: [fairlead.dev]
    resources: [identitybans]
    verbs: [get, list, watch]
  - apiGroups: [gateway.networking.k8s.io]
    resources:
      - backendtlspolicies
      - gatewayclasses
      - gateways
      - grpcroutes
      - httproutes
      - listenersets
      - referencegrants
      - tcproutes
      - tlsroutes
      - udproutes
    verbs: [get, list, watch]
  - apiGroups: [gateway.networking.k8s.io]
    resources:
      - backendtlspolicies/status
      - gatewayclasses/status
      - gateways/status
      - grpcroutes/status
      - httproutes/status
      - listenersets/status
      - tcproutes/status
      - tlsroutes/status
      - udproutes/status
    verbs: [patch]
  {{- $exports := include "fairlead.envIsTrue" (dict "v" .v "name" "ENABLE_MCS_AUTO_EXPORT") }}
  {{- if or $exports (include "fairlead.envIsTrue" (dict "v" .v "name" "ENABLE_MCS_SERVICE_DISCOVERY")) }}
  - apiGroups: [multicluster.x-k8s.io]
    resources: [serviceexports, serviceimports]
    verbs: [get, list, watch]
  - apiGroups: [multicluster.x-k8s.io]
    resources: [serviceexports/status]
    verbs: [patch]
  {{- end }}
  {{- if $exports }}
  - apiGroups: [multicluster.x-k8s.io]
    resources: [serviceexports]
    verbs: [create]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: fairlead-config-watcher{{ $cluster }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: fairlead-config-watcher{{ $cluster }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ $ns }}
---
# The replicas elect one of them to write statuses.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: fairlead-config-watcher{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
  namespace: {{ $ns }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create] # a name cannot be asked for here
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [fairlead-config-watcher-status{{ $suffix }}]
    verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: fairlead-config-watcher{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
  namespace: {{ $ns }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: fairlead-config-watcher{{ $suffix }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ $ns }}
---
# It tells by a metric whether the configuration of its validating webhook has caBundle and failurePolicy, which the keeper writes.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: fairlead-config-watcher-webhook{{ $cluster }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
rules:
  - apiGroups: [admissionregistration.k8s.io]
    resources: [validatingwebhookconfigurations]
    resourceNames: [fairlead-validator{{ $cluster }}]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: fairlead-config-watcher-webhook{{ $cluster }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: fairlead-config-watcher-webhook{{ $cluster }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ $ns }}
{{- /* Without these values the keeper binds both roles, which are of chart base. */}}
{{- include "fairlead.watcherBindings" (dict "root" .root "account" .account "role" "fairlead-config-watcher-credentials" "namespaces" .v.credentialNamespaces) }}
{{- include "fairlead.watcherBindings" (dict "root" .root "account" .account "role" "fairlead-config-watcher-registration" "namespaces" .v.registrationNamespaces) }}
{{- if or .v.remoteClusters .v.registries }}
---
# Secrets of this namespace with the label istio/multiCluster=true name remote clusters, and those with fairlead.dev/registry=consul declare registries;
# rights cannot be bound to a label. remoteClusters: false and registries: false remove the role.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: fairlead-config-watcher-remote-clusters{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
  namespace: {{ $ns }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: fairlead-config-watcher-remote-clusters{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
  namespace: {{ $ns }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: fairlead-config-watcher-remote-clusters{{ $suffix }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ $ns }}
{{- end }}
{{- $mesh := .root.Values.meshConfig | default dict }}
{{- range $in := list $ns (dig "rootNamespace" "" $mesh | default $ns) | uniq }}
---
# The mesh's settings, and what Gateways of a class have in common, by label.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: config-watcher{{ $suffix }}
  namespace: {{ $in }}
  labels: {{- include "fairlead.labels" (list $.root "config-watcher") | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: config-watcher{{ $suffix }}
  namespace: {{ $in }}
  labels: {{- include "fairlead.labels" (list $.root "config-watcher") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: config-watcher{{ $suffix }}
subjects:
  - kind: ServiceAccount
    name: {{ $.account }}
    namespace: {{ $ns }}
{{- end }}
{{- end }}

{{/* Bindings of a ClusterRole to config-watcher: dict root, account, role, namespaces ("*" is every one; none if the keeper binds). */}}
{{- define "fairlead.watcherBindings" -}}
{{- range $in := .namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if eq $in "*" }}ClusterRoleBinding{{ else }}RoleBinding{{ end }}
metadata:
  name: {{ $.role }}{{ include "fairlead.clusterSuffix" $.root }}
  {{- if ne $in "*" }}
  namespace: {{ $in }}
  {{- end }}
  labels: {{- include "fairlead.labels" (list $.root "config-watcher") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $.role }}
subjects:
  - kind: ServiceAccount
    name: {{ $.account }}
    namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* The mesh's settings, in Istio's own ConfigMap. */}}
{{- define "fairlead.meshConfig" -}}
{{- $ns := .Release.Namespace -}}
{{- $g := .Values.global | default dict -}}
{{- $own := dict
  "trustDomain" (include "fairlead.trustDomain" .)
  "rootNamespace" $ns
  "defaultConfig" (include "fairlead.proxyConfig" . | fromJson) -}}
{{- $mesh := mergeOverwrite $own (deepCopy (.Values.meshConfig | default dict)) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: istio{{ include "fairlead.suffix" . }}
  namespace: {{ $ns }}
  labels:
    {{- include "fairlead.labels" (list . "config-watcher") | nindent 4 }}
    istio.io/rev: {{ include "fairlead.rev" . }}
data:
  mesh: |
    {{- toYaml $mesh | nindent 4 }}
  {{- with $g.meshNetworks }}
  meshNetworks: |
    networks: {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}

{{/* Services of config-watcher: dict root, v, app, monitoring. */}}
{{- define "fairlead.watcherServices" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := include "fairlead.suffix" .root }}
---
apiVersion: v1
kind: Service
metadata:
  name: config-watcher{{ $suffix }}
  namespace: {{ $ns }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
  {{- with .v.serviceAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "fairlead.serviceFields" .v | nindent 2 }}
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-config, port: 15060, targetPort: tls-config, appProtocol: tls}
    - {name: http-monitoring, port: 15014, targetPort: {{ .monitoring }}, appProtocol: http}
    # The webhook configuration leads API servers here.
    - {name: https-webhook, port: 443, targetPort: https-webhook, appProtocol: https}
    {{- if include "fairlead.mcp" .v }}
    - {name: tls-mcp, port: 15070, targetPort: tls-mcp, appProtocol: tls}
    {{- end }}
---
# Resolves to every ready Pod: the replica that writes statuses asks the others for the proxies that are reported to them.
apiVersion: v1
kind: Service
metadata:
  name: config-watcher-peers{{ $suffix }}
  namespace: {{ $ns }}
  labels: {{- include "fairlead.labels" (list .root "config-watcher") | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-config, port: 15060, targetPort: tls-config, appProtocol: tls}
{{- end }}

{{/* An API server asks config-watcher about each object of Istio's kinds and of Fairlead's before it stores it: dict root. */}}
{{- define "fairlead.webhook" -}}
{{- if and (dig "configValidation" true (.Values.global | default dict)) (not (include "fairlead.external" .)) }}
---
# failurePolicy is Ignore only until config-watcher has found that the webhook answers: it then sets Fail, and caBundle, and keeps both. See
# docs/guide/admission.md. Helm 4 takes a field that another program has changed for a conflict, so that with it the field is Kubernetes' default, Fail,
# from the beginning.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: fairlead-validator{{ include "fairlead.clusterSuffix" . }}
  labels: {{- include "fairlead.labels" (list . "config-watcher") | nindent 4 }}
webhooks:
  - name: validation.fairlead.dev
    admissionReviewVersions: [v1]
    sideEffects: None
    {{- if not (semverCompare ">=4.0.0-0" .Capabilities.HelmVersion.Version) }}
    failurePolicy: Ignore
    {{- end }}
    timeoutSeconds: 10
    clientConfig:
      service: {name: config-watcher{{ include "fairlead.suffix" . }}, namespace: {{ .Release.Namespace }}, path: /validate, port: 443}
    {{- with .Values.revision }}
    # Objects of other revisions, and of none, are for other control planes.
    objectSelector:
      matchLabels:
        istio.io/rev: {{ . }}
    {{- end }}
    rules:
      - apiGroups: [networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io, fairlead.dev]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: ["*"]
  # Objects of the Gateway API may be for other controllers: while config-watcher does not answer, they are let in.
  - name: advice.fairlead.dev
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    timeoutSeconds: 2
    clientConfig:
      service: {name: config-watcher{{ include "fairlead.suffix" . }}, namespace: {{ .Release.Namespace }}, path: /validate, port: 443}
    {{- with .Values.revision }}
    objectSelector:
      matchLabels:
        istio.io/rev: {{ . }}
    {{- end }}
    rules:
      - apiGroups: [gateway.networking.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: ["*"]
{{- end }}
{{- end }}

{{/* Services of xds-server: as those of config-watcher. */}}
{{- define "fairlead.serverServices" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := include "fairlead.suffix" .root }}
---
apiVersion: v1
kind: Service
metadata:
  name: xds-server{{ $suffix }}
  namespace: {{ $ns }}
  labels: {{- include "fairlead.labels" (list .root "xds-server") | nindent 4 }}
spec:
  {{- include "fairlead.serviceFields" .v | nindent 2 }}
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-xds, port: 15012, targetPort: tls-xds, appProtocol: tls}
    - {name: http-monitoring, port: 15014, targetPort: {{ .monitoring }}, appProtocol: http}
---
# Resolves to every ready Pod: the replicas find each other by it and spread the proxies evenly.
apiVersion: v1
kind: Service
metadata:
  name: xds-server-peers{{ $suffix }}
  namespace: {{ $ns }}
  labels: {{- include "fairlead.labels" (list .root "xds-server") | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-xds, port: 15012, targetPort: tls-xds, appProtocol: tls}
---
# The name that Istio's sidecars dial unless told otherwise. The ca has a Service of its own; MeshConfig tells sidecars so
# (CA_ADDR). Requests for certificates that come here all the same are forwarded to it.
apiVersion: v1
kind: Service
metadata:
  name: istiod{{ $suffix }}
  namespace: {{ $ns }}
  labels:
    {{- include "fairlead.labels" (list .root "xds-server") | nindent 4 }}
    istio: pilot
    istio.io/rev: {{ include "fairlead.rev" .root }}
  {{- with .v.serviceAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "fairlead.serviceFields" .v | nindent 2 }}
  selector:
    {{ include "fairlead.istiodLabel" . }}
    istio.io/rev: {{ include "fairlead.rev" .root }}
  ports:
    {{- if eq $ns (include "fairlead.namespaceOf" (list .root "injector")) }}
    # API servers of other clusters come here by a gateway; a Service leads to no Pod of another namespace.
    - {name: https-webhook, port: 443, targetPort: https-inject, appProtocol: https}
    {{- end }}
    {{- if .v.plaintext }}
    - {name: grpc-xds, port: 15010, targetPort: grpc-xds, appProtocol: grpc}
    {{- end }}
    - {name: https-dns, port: 15012, targetPort: tls-xds, appProtocol: tls}
    - {name: http-monitoring, port: 15014, targetPort: {{ .monitoring }}, appProtocol: http}
{{- end }}

{{/* The ca's Service: as those of config-watcher. */}}
{{- define "fairlead.caService" -}}
---
apiVersion: v1
kind: Service
metadata:
  name: ca
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
  {{- with .v.serviceAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "fairlead.serviceFields" .v | nindent 2 }}
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-ca, port: 15012, targetPort: tls-ca, appProtocol: tls}
    - {name: http-monitoring, port: 15014, targetPort: {{ .monitoring }}, appProtocol: http}
{{- if include "fairlead.caSeveral" .v }}
---
# Resolves to every Pod, ready or not: a replica that cannot sign still knows who has which certificate.
apiVersion: v1
kind: Service
metadata:
  name: ca-peers
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "fairlead.selector" (list .root .app) | nindent 4 }}
  ports:
    - {name: tls-ca, port: 15012, targetPort: tls-ca, appProtocol: tls}
{{- end }}
{{- end }}

{{/* The claim of the root key's volume: dict root, v. Helm leaves it when the release is uninstalled. */}}
{{- define "fairlead.caClaim" -}}
{{- if and .v.storage (not (include "fairlead.caSeveral" .v)) }}
---
# The root key. Back it up, encrypted; with another root nothing that runs trusts anything new.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: ca-root
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with .v.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .v.storageSize | default "16Mi" }}
{{- end }}
{{- end }}

{{/* Rights of the ca: dict root, v, account. It writes two ConfigMaps, and reads what no object holds: the API server's public keys, which every service account may. */}}
{{- define "fairlead.caRBAC" -}}
{{- $ns := .root.Release.Namespace -}}
{{- $suffix := ternary "" (printf "-%s" $ns) (eq $ns "istio-system") }}
---
# The root of trust, which workloads mount: in every namespace.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: fairlead-ca{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [namespaces]
    verbs: [list, watch]
  # Whose tokens are still worth something.
  - apiGroups: [""]
    resources: [serviceaccounts, pods]
    verbs: [get, list, watch]
  - apiGroups: [fairlead.dev]
    resources: [identitybans]
    verbs: [list, watch]
  # Whether API servers verify webhooks with a new root, before anything is issued below it.
  - apiGroups: [admissionregistration.k8s.io]
    resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
    verbs: [list, watch]
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [create] # a name cannot be asked for here
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [{{ include "fairlead.rootConfigMap" .root }}]
    verbs: [get, list, watch, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: fairlead-ca{{ $suffix }}
  labels: {{- include "fairlead.labels" (list .root "ca") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: fairlead-ca{{ $suffix }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ $ns }}
{{- range $in := include "fairlead.namespaces" .root | fromJsonArray }}
---
# The keys of service account tokens, for the other services.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: fairlead-ca
  namespace: {{ $in }}
  labels: {{- include "fairlead.labels" (list $.root "ca") | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [fairlead-jwks]
    verbs: [get, update]
  {{- if eq $in $ns }}
  # The keys of remote clusters, by label.
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [list, watch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: fairlead-ca
  namespace: {{ $in }}
  labels: {{- include "fairlead.labels" (list $.root "ca") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: fairlead-ca
subjects:
  - kind: ServiceAccount
    name: {{ $.account }}
    namespace: {{ $ns }}
{{- end }}
{{- include "fairlead.signerRBAC" . }}
{{- end }}
