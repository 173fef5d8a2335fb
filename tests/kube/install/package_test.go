package install

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// charts is a small install package: definitions and roles in base, a control plane in pilot, and a DaemonSet in cni.
// values.pilot.env decides what is in ConfigMaps, and whether there is a further one, and an HorizontalPodAutoscaler.
var charts = map[string]string{
	"components.yaml": `
namespace: mesh
values: [{spec: hub, value: hub}, {spec: revision, value: revision}, {spec: meshConfig, value: meshConfig, specWins: true}]
components:
- {name: base, chart: charts/base, root: base, workload: {}}
- {name: pilot, chart: charts/server, root: pilot, flatten: true, workload: {kind: Deployment, name: "server${revision}", container: server}}
- {name: cni, chart: charts/agent, root: cni, workload: {kind: DaemonSet, name: agent, container: agent}}
`,
	"profiles/default.yaml":  `{spec: {hub: example.com/mesh, components: {base: {enabled: true}, pilot: {enabled: true}}}}`,
	"profiles/full.yaml":     `{spec: {components: {cni: {enabled: true}}}}`,
	"charts/base/Chart.yaml": `{apiVersion: v2, name: base, version: 1.0.0, appVersion: 1.4.0}`,
	"charts/base/templates/all.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 1}, shape: {type: string}}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: mesh-reader}
rules: [{apiGroups: [""], resources: [services], verbs: [get, list, watch]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: {{ .Release.Namespace }}}
{{- if (.Values.global | default dict).logAsJson }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: root, namespace: {{ .Release.Namespace }}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
{{- end }}
`,
	"charts/server/Chart.yaml": `{apiVersion: v2, name: server, version: 1.0.0, appVersion: 1.4.0}`,
	"charts/server/templates/all.yaml": `
{{- $name := printf "server%s" (ternary (printf "-%s" (.Values.revision | toString)) "" (not (empty .Values.revision))) }}
{{- $env := .Values.env | default dict }}
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
data: {level: {{ $env.LEVEL | default "info" }}, hub: {{ .Values.hub }}}
---
{{- if $env.EXTRA }}
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ $name }}-extra, namespace: {{ .Release.Namespace }}}
data: {extra: {{ $env.EXTRA }}}
---
{{- end }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: {{ $name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mesh-reader}
subjects: [{kind: ServiceAccount, name: {{ $name }}, namespace: {{ .Release.Namespace }}}]
---
apiVersion: v1
kind: Service
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
spec: {selector: {app: {{ $name }}}, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
spec:
  replicas: 2
  selector: {matchLabels: {app: {{ $name }}}}
  template:
    metadata: {labels: {app: {{ $name }}}}
    spec: {serviceAccountName: {{ $name }}, containers: [{name: server, image: {{ .Values.hub }}/server:1}]}
---
{{- if $env.SCALED }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
spec: {minReplicas: 2, maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}}
---
{{- end }}
apiVersion: example.com/v1
kind: Thing
metadata: {name: {{ $name }}, namespace: {{ .Release.Namespace }}}
spec: {size: {{ $env.SIZE | default 3 }}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: {{ $name }}-validator}
webhooks:
- name: validate.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  failurePolicy: Ignore
  timeoutSeconds: 1
  clientConfig: {service: {name: {{ $name }}, namespace: {{ .Release.Namespace }}, path: /validate}}
  rules: [{apiGroups: [other.example.com], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}]
`,
	"charts/agent/Chart.yaml": `{apiVersion: v2, name: agent, version: 1.0.0, appVersion: 1.4.0}`,
	"charts/agent/templates/all.yaml": `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: {{ .Release.Namespace }}}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: {{ .Values.hub }}/agent:1}]}
`,
}

// writePackage writes the install package, with some files replaced or added, and returns its directory.
func writePackage(t *testing.T, replaced map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files := maps.Clone(charts)
	maps.Copy(files, replaced)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, path, []byte(text))
	}
	return dir
}
