package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/process"
)

// gatewayName is the east-west gateway's in Istio's samples.
const gatewayName = "istio-eastwestgateway"

// TestEastWestGatewayOfIstiosScript installs what Istio's samples/multicluster/gen-eastwest-gateway.sh writes, with
// each of its options, unchanged: our gateway has the Service of istioctl's, and the variables of its proxies.
func TestEastWestGatewayOfIstiosScript(t *testing.T) {
	p := programs(t)
	script := filepath.Join(p.Manifests, "..", "samples", "multicluster", "gen-eastwest-gateway.sh")
	for name, options := range map[string][]string{
		"network":  {"--network", "n1"},
		"all":      {"--network", "n1", "--cluster", "c1", "--mesh", "m1"},
		"single":   {"--single-cluster"},
		"revision": {"--network", "n1", "--revision", "canary"},
	} {
		t.Run(name, func(t *testing.T) {
			written, err := process.Ask(exec.CommandContext(t.Context(), "bash", append([]string{script}, options...)...)) //nolint:gosec // Istio's
			if err != nil || written.Code != 0 {
				t.Fatalf("%v: %s", err, written.Said)
			}
			inputs, err := inputs(t.TempDir(), Case{Files: []string{written.Out}})
			if err != nil {
				t.Fatal(err)
			}
			istio, err := generate(t.Context(), p.Istioctl, append([]string{"manifest", "generate", "--manifests", p.Manifests}, inputs...))
			if err != nil || istio.Refused != "" {
				t.Fatalf("istioctl: %v: %s", err, istio.Refused)
			}
			ours, err := generate(t.Context(), p.Fairlead, append([]string{"manifest", "generate"}, inputs...))
			if err != nil || ours.Refused != "" {
				t.Fatalf("fairlead: %v: %s", err, ours.Refused)
			}
			if strings.Contains(ours.Said, "no effect") {
				t.Errorf("fairlead says %s", ours.Said)
			}
			a, b := service(t, istio), service(t, ours)
			if a.Spec.Type != b.Spec.Type || !slices.EqualFunc(a.Spec.Ports, b.Spec.Ports, samePort) {
				t.Errorf("istioctl's Service is\n%+v\nours is\n%+v", a.Spec, b.Spec)
			}
			for _, label := range []string{"app", "istio", "topology.istio.io/network"} {
				if a.Labels[label] != b.Labels[label] || a.Spec.Selector[label] != b.Spec.Selector[label] {
					t.Errorf("label %s: istioctl's Service %q, %q, ours %q, %q", label, a.Labels[label], a.Spec.Selector[label], b.Labels[label],
						b.Spec.Selector[label])
				}
			}
			theirs, own := variables(t, istio), variables(t, ours)
			for name, value := range theirs {
				if own[name] != value {
					t.Errorf("variable %s is %q, istioctl's %q", name, own[name], value)
				}
			}
			if network := b.Labels["topology.istio.io/network"]; own["ISTIO_META_NETWORK"] != network {
				t.Errorf("the proxy's network is %q, the Service's %q", own["ISTIO_META_NETWORK"], network)
			}
		})
	}
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Port == b.Port && a.TargetPort == b.TargetPort
}

func service(t *testing.T, o Outcome) *corev1.Service {
	t.Helper()
	out := &corev1.Service{}
	if err := yaml.Unmarshal([]byte(o.Objects["Service istio-system/"+gatewayName]), out); err != nil || out.Name == "" {
		t.Fatalf("no Service: %v", err)
	}
	return out
}

// variables are those with a value that the Deployment's container has.
func variables(t *testing.T, o Outcome) map[string]string {
	t.Helper()
	deployment := struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}{}
	text, err := yaml.YAMLToJSON([]byte(o.Objects["Deployment istio-system/"+gatewayName]))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &deployment); err != nil || len(deployment.Spec.Template.Spec.Containers) == 0 {
		t.Fatalf("no Deployment: %v", err)
	}
	all := map[string]string{}
	for _, e := range deployment.Spec.Template.Spec.Containers[0].Env {
		if e.Value != "" {
			all[e.Name] = e.Value
		}
	}
	return all
}

// TestIstiosFilesOfEastWestGateways: the objects that users apply beside the gateway are valid as they are, with the
// placeholders filled in.
func TestIstiosFilesOfEastWestGateways(t *testing.T) {
	p := programs(t)
	if os.Getenv("BIN_DIR") == "" {
		t.Skip("set BIN_DIR: `fairlead validate` runs config-watcher, which `make build` builds")
	}
	fill := strings.NewReplacer("{{.Revision}}", "canary", "$CREDENTIAL_NAME", "istiod-credential", "ISTIOD-HOST.DOMAIN", "istiod.example.com")
	for file, objects := range map[string]string{
		"expose-services.yaml": "1 object: 1 accepted, ", "expose-istiod.yaml": "2 objects: 2 accepted, ",
		"expose-istiod-rev.yaml.tmpl": "2 objects: 2 accepted, ", "expose-istiod-https.yaml": "3 objects: 3 accepted, ",
	} {
		text, err := os.ReadFile(filepath.Join(p.Manifests, "..", "samples", "multicluster", file))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), p.Fairlead, "validate", "--strict", "-f", "-") //nolint:gosec // the program under test
		cmd.Stdin = strings.NewReader(fill.Replace(string(text)))
		answer, err := process.Ask(cmd)
		if err != nil || answer.Code != 0 || !strings.Contains(answer.Out, objects) {
			t.Errorf("%s: %v: code %d, %s%s", file, err, answer.Code, answer.Out, answer.Said)
		}
	}
}
