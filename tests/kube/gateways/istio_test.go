package gateways

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

const (
	ours   = "by-fairlead"
	theirs = "by-istio"
)

// startIstiod starts Istio's pilot-discovery as revision theirs, whose Gateways are those of the namespace theirs.
func (r *rig) startIstiod() {
	r.t.Helper()
	istioctl, dir := binaries.Istioctl(r.t), r.t.TempDir()
	all, err := kubeapi.Decode(
		[]byte(process.MustDo(r.t, exec.CommandContext(r.t.Context(), istioctl, "manifest", "generate", "--set", //nolint:gosec // Istio's
			"profile=minimal", "--set", "revision="+theirs))),
	)
	testkit.NoError(r.t, err)
	for _, o := range all {
		if o.GetKind() == "ConfigMap" {
			testkit.NoError(r.t, kubeapi.Apply(r.t.Context(), r.Config, o))
		}
	}
	ca := testkit.PKI(r.t)
	root, both := ca.WriteRoot(dir), filepath.Join(dir, "istiod.pem")
	cert, key := filepath.Join(dir, "istiod.crt"), filepath.Join(dir, "istiod.key")
	ca.WriteSVID(both, system, "istiod")
	raw, err := os.ReadFile(both)
	testkit.NoError(r.t, err)
	block, rest := pem.Decode(raw)
	testkit.WriteFile(r.t, key, pem.EncodeToMemory(block))
	testkit.WriteFile(r.t, cert, rest)
	other := func() string { return testkit.FreeAddress(r.t).String() }
	http := other()
	istiod := process.Run(r.t, process.Program{
		Name: "istiod", Path: filepath.Join(filepath.Dir(istioctl), "pilot-discovery"),
		Args: []string{
			"discovery", "--kubeconfig", r.Kubeconfig, "--revision", theirs, "--httpAddr", http, "--grpcAddr", other(), "--secureGRPCAddr", other(),
			"--monitoringAddr", other(), "--httpsAddr", other(), "--ctrlz_port", "0",
			"--tlsCertFile", cert, "--tlsKeyFile", key, "--caCertFile", root,
		},
		Env: []string{
			"POD_NAMESPACE=" + system, "POD_NAME=istiod", "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "REVISION=" + theirs,
			"ENABLE_CA_SERVER=false", "VALIDATION_WEBHOOK_CONFIG_NAME=", "INJECTION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_ANALYSIS=false",
			"PILOT_ENABLE_LISTENERSET=true",
		},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = dir; return nil },
	})
	testkit.NoError(r.t, istiod.Until(r.t.Context(), testkit.Patience, func() error {
		return probe.Ready(r.t.Context(), probe.Client(nil), "http://"+http+"/ready")
	}))
}

// corpus are Gateways by name, in a namespace that is NS.
func corpus() map[string]string {
	one := "listeners: [{name: http, port: 80, protocol: HTTP}]"
	with := func(name string, data map[string]string) string {
		return configMap("NS", name, data) + gateway("NS", name, "",
			"{gatewayClassName: istio, infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: "+name+"}}, "+one+"}")
	}
	return map[string]string{
		"simple": gateway("NS", "simple", "", ""),
		"listeners": gateway("NS", "listeners", "", `{gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP},
  {name: other, port: 80, protocol: HTTP, hostname: a.example}, {name: a.b, port: 8080, protocol: HTTP},
  {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}, {name: tls, port: 8443, protocol: TLS, tls: {mode: Passthrough}},
  {name: tcp, port: 9000, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]}`),
		"labels": gateway("NS", "labels", ", labels: {team: a, istio.io/rev: REV}, annotations: {note: b}", ""),
		"infrastructure": gateway(
			"NS",
			"infrastructure",
			", labels: {team: a}",
			"{gatewayClassName: istio, infrastructure: {labels: {team: b, "+
				"topology.istio.io/network: far}, annotations: {note: b, prometheus.io/scrape: 'false'}}, "+one+"}",
		),
		"mesh": gateway(
			"NS",
			"mesh",
			"",
			"{gatewayClassName: istio, infrastructure: {labels: {sidecar.istio.io/inject: 'true'}}, "+one+"}",
		),
		"type": gateway("NS", "type", ", annotations: {networking.istio.io/service-type: NodePort}", ""),
		"named": gateway(
			"NS",
			"named",
			", annotations: {gateway.istio.io/name-override: edge, gateway.istio.io/service-account: edge-account}",
			"",
		),
		"address":   gateway("NS", "address", "", "{gatewayClassName: istio, addresses: [{type: IPAddress, value: 192.0.2.1}], "+one+"}"),
		"elsewhere": gateway("NS", "elsewhere", "", "{gatewayClassName: istio, addresses: [{type: Hostname, value: edge.NS.svc}], "+one+"}"),
		"remote":    gateway("NS", "remote", "", "{gatewayClassName: istio-remote, addresses: [{type: Hostname, value: a.example}], "+one+"}"),
		"overlays": with("overlays", map[string]string{
			"deployment": `
metadata: {annotations: {note: a}}
spec:
  replicas: 3
  template:
    metadata: {annotations: {note: c}, labels: {tier: edge}}
    spec:
      nodeSelector: {disk: ssd}
      tolerations: [{key: a, operator: Exists}]
      priorityClassName: high
      topologySpreadConstraints: [{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
      containers: [{name: istio-proxy, resources: {requests: {cpu: 10m}}}]
`,
			"service":                 "metadata: {annotations: {note: d}}\nspec: {externalTrafficPolicy: Local, ports: [{port: 80, nodePort: PORT}]}",
			"serviceAccount":          "metadata: {annotations: {note: e}}",
			"horizontalPodAutoscaler": "spec: {minReplicas: 2, maxReplicas: 4}",
			"podDisruptionBudget":     "spec: {minAvailable: 1}",
		}),
		"asked": with(
			"asked",
			map[string]string{"horizontalPodAutoscaler": "spec: {maxReplicas: 3}", "podDisruptionBudget": "spec: {maxUnavailable: 2}"},
		),
		"unknown": with("unknown", map[string]string{"role": "{}"}),
		"lost": gateway(
			"NS",
			"lost",
			"",
			"{gatewayClassName: istio, infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: none}}, "+
				one+"}",
		),
		"rights": with("rights", map[string]string{"deployment": "spec: {template: {spec: {containers: [{name: istio-proxy, image: evil}]}}}"}),
		"long":   gateway("NS", strings.Repeat("long-", 15)+"name", "", ""),
	}
}

// name of the Deployment of a Gateway of the corpus.
var names = map[string]string{"named": "edge", "remote": "remote-istio-remote"}

func nameOf(c string) string {
	if n := names[c]; n != "" {
		return n
	}
	return c + "-istio"
}

// TestIstiosControllerMakesTheSame holds the differences between what fairlead-gateways and Istio's controller make of
// the same Gateways: each has a row, with its reason, in docs/reference/gateway-deployment-differences.md.
func TestIstiosControllerMakesTheSame(t *testing.T) {
	r := newRig(t)
	r.namespace(ours, nil)
	r.namespace(theirs, map[string]string{"istio.io/rev": theirs})
	r.start()
	r.startIstiod()
	all := corpus()
	for i, name := range slices.Sorted(maps.Keys(all)) {
		for j, namespace := range []string{ours, theirs} {
			rev := map[string]string{ours: "default", theirs: theirs}[namespace]
			r.Apply(t, strings.NewReplacer("NS", namespace, "PORT", fmt.Sprint(30100+10*i+j), "REV", rev).Replace(all[name]))
		}
	}
	// Istio's are there when those are that both make. A last Gateway comes after those of which nothing is made.
	for _, namespace := range []string{ours, theirs} {
		for _, name := range []string{
			"simple", "listeners", "labels", "infrastructure", "mesh", "type", "named", "address", "overlays", "asked"} {
			testkit.Eventually(t, patience, func() error {
				for _, kind := range made[:3] {
					if r.get(kind, namespace, nameOf(name)) == nil && (kind != "ServiceAccount" || name != "named") {
						return fmt.Errorf("there is no %s %s/%s", kind, namespace, nameOf(name))
					}
				}
				return nil
			})
		}
		r.Apply(t, gateway(namespace, "last", "", ""))
		r.has(namespace, "last-istio", standard...)
	}
	found := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, kind := range made {
			of := nameOf(name)
			if kind == "ServiceAccount" && name == "named" {
				of = "edge-account"
			}
			a, b := r.get(kind, theirs, of), r.get(kind, ours, of)
			if name == "long" {
				continue // TestAGatewayHasWhatItNeeds: Istio makes no Service of such a name
			}
			if (a == nil) != (b == nil) {
				found["all of "+name] = fmt.Sprintf("%s: Istio %v, here %v", kind, a != nil, b != nil)
				continue
			}
			if a == nil {
				continue
			}
			x, y := flat(kind, a, theirs), flat(kind, b, ours)
			for _, path := range slices.Sorted(maps.Keys(union(x, y))) {
				if x[path] != y[path] {
					key := kind + " " + index.ReplaceAllString(path, "[]")
					found[key] = fmt.Sprintf("%s: Istio %s, here %s", name, x[path], y[path])
				}
			}
		}
	}
	rows := map[string]bool{}
	for _, row := range differences {
		rows[row.what] = true
		if found[row.what] == "" {
			t.Errorf("%s does not differ any more: remove its row", row.what)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		if !rows[what] {
			t.Errorf("%s differs without a row: %s", what, found[what])
		}
	}
}

var index = regexp.MustCompile(`\[[^\]]*\]`)

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// podFields are what is compared of a Pod's spec; the rest is the program's.
var podFields = []string{
	"serviceAccountName",
	"nodeSelector",
	"affinity",
	"tolerations",
	"topologySpreadConstraints",
	"priorityClassName",
	"securityContext",
	"terminationGracePeriodSeconds",
	"hostNetwork",
	"automountServiceAccountToken",
	"enableServiceLinks",
}

// flat is an object as paths with values, without what the API server decides. Its namespace is called NS, and the
// revision REV.
func flat(kind string, u *unstructured.Unstructured, namespace string) map[string]string {
	o := u.DeepCopy().Object
	meta, _, _ := unstructured.NestedMap(o, "metadata")
	keep := map[string]any{"labels": meta["labels"], "annotations": meta["annotations"]}
	if annotations, ok := keep["annotations"].(map[string]any); ok {
		delete(annotations, "deployment.kubernetes.io/revision")
	}
	if owner := u.GetOwnerReferences(); len(owner) == 1 {
		keep["owner"] = owner[0].APIVersion + " " + owner[0].Kind + " " + owner[0].Name
	}
	o["metadata"] = keep
	delete(o, "status")
	if spec, ok := o["spec"].(map[string]any); ok {
		switch kind {
		case "Service":
			for _, name := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort", "ipFamilies"} {
				delete(spec, name)
			}
			ports, _ := spec["ports"].([]any)
			byPort := map[string]any{}
			for _, p := range ports {
				port, _ := p.(map[string]any)
				delete(port, "nodePort")
				byPort[fmt.Sprintf("[%v]", port["port"])] = port
			}
			spec["ports"] = byPort
		case "Deployment":
			pod, _, _ := unstructured.NestedMap(spec, "template", "spec")
			kept := map[string]any{}
			for _, name := range podFields {
				kept[name] = pod[name]
			}
			containers, _ := pod["containers"].([]any)
			for _, c := range containers {
				container, _ := c.(map[string]any)
				kept["container"] = map[string]any{"name": container["name"], "resources": container["resources"],
					"securityContext": container["securityContext"]}
			}
			_ = unstructured.SetNestedMap(spec, kept, "template", "spec")
		}
	}
	out := map[string]string{}
	flatten("", o, out)
	for path, value := range out {
		out[path] = strings.ReplaceAll(value, namespace, "NS")
		if strings.HasSuffix(path, ".istio.io/rev") {
			out[path] = "REV"
		}
	}
	return out
}

func flatten(path string, value any, into map[string]string) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for name, inner := range v {
			at := path + "." + name
			if strings.HasPrefix(name, "[") {
				at = path + name
			}
			flatten(strings.TrimPrefix(at, "."), inner, into)
		}
	default:
		text, _ := json.Marshal(v) // which came from JSON
		into[path] = string(text)
	}
}
