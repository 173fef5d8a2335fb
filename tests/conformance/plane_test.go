package conformance

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

// plane is a control plane that the suite can test; planes/NAME.yaml describes it.
type plane struct {
	// Class is the GatewayClass of the suite's Gateways, Mesh the XMesh whose features are tested.
	Class string `json:"class"`
	Mesh  string `json:"mesh,omitempty"`
	// Inferred is true if features are those that GatewayClass and XMesh claim in their status, which must be all but
	// Unsupported; else they are all that the suite knows but Unsupported.
	Inferred       bool                  `json:"inferred,omitempty"`
	Implementation confv1.Implementation `json:"implementation"`
	// Hostnames is true if it takes no addresses of Gateways but names of Services.
	Hostnames bool `json:"hostnames,omitempty"`
	// Unsupported are features that it does not have, and Fails tests of the others that it is known to fail, each with
	// its reason.
	Unsupported map[features.FeatureName]string `json:"unsupported,omitempty"`
	Fails       map[string]string               `json:"fails,omitempty"`
	// Install are the commands that install it, where $NAME is of the environment.
	Install [][]string `json:"install"`
}

//go:embed planes/*.yaml
var planes embed.FS

func planeNamed(name string) (*plane, error) {
	text, err := planes.ReadFile("planes/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("CONTROL_PLANE=%s is none of those in tests/conformance/planes: %w", name, err)
	}
	p := &plane{}
	err = yaml.UnmarshalStrict(text, p)
	p.Implementation.Version = os.ExpandEnv(p.Implementation.Version)
	return p, err
}

// features are those that it has, and that tests of the mesh, or of gateways, may ask for.
func (p *plane) features(mesh bool) suite.FeaturesSet {
	ofOther := features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures)
	if mesh {
		ofOther = features.SetsToNamesSet(features.GatewayCoreFeatures, features.GatewayExtendedFeatures)
	}
	return features.SetsToNamesSet(features.AllFeatures).Difference(ofOther).Difference(sets.KeySet(p.Unsupported))
}

// supported are the profiles whose kind of route it has: the suite takes all Core features of a profile for supported.
func (p *plane) supported(profiles []suite.ConformanceProfileName) []suite.ConformanceProfileName {
	return slices.DeleteFunc(slices.Clone(profiles), func(name suite.ConformanceProfileName) bool {
		_, without := p.Unsupported[features.SupportUDPRoute]
		return without && name == suite.GatewayUDPConformanceProfileName
	})
}

// excuses are tests that may be skipped, with the reason.
func (p *plane) excuses() map[string]string {
	all := maps.Clone(p.Fails)
	if all == nil {
		all = map[string]string{}
	}
	for _, test := range tests.ConformanceTests {
		for _, feature := range test.Features {
			if why := p.Unsupported[feature]; why != "" {
				all[test.ShortName] = why
			}
		}
	}
	return all
}

// install installs the kinds of the suite's own version, and the control plane.
func (p *plane) install(t *testing.T) {
	t.Helper()
	crds := filepath.Join(os.Getenv("GATEWAY_API"), "config/crd/experimental")
	do(t, "kubectl", "apply", "--server-side", "-k", crds)
	do(t, "kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	began := time.Now()
	for _, command := range p.Install {
		for i := range command {
			command[i] = os.Expand(command[i], func(name string) string {
				value, ok := os.LookupEnv(name)
				if !ok {
					t.Fatalf("the environment has no %s, which the installation needs: run `make conformance`", name)
				}
				return value
			})
		}
		do(t, command[0], command[1:]...)
	}
	claims := []string{"gatewayclass/" + p.Class}
	if p.Inferred {
		claims = append(claims, "xmesh/"+p.Mesh)
	}
	for _, claim := range claims {
		do(t, "kubectl", "wait", "--for=create", claim, "--timeout=60s")
		do(t, "kubectl", "wait", "--for=condition=Accepted", claim, "--timeout=60s")
	}
	fmt.Fprintf(os.Stderr, "%5.0f s  the control plane is ready\n", time.Since(began).Seconds())
}

// do runs a command, which must succeed, and returns what it says. Tests may have ended.
func do(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	said, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, said)
	}
	return string(said)
}

// keep writes the state and the logs of all Pods, and the objects of the Gateway API, into a directory.
func keep(t *testing.T, dir string) {
	t.Helper()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write("pods.txt", do(t, "kubectl", "get", "pods,services", "-A", "-o", "wide"))
	write("events.txt", do(t, "kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp"))
	write("gateway-api.yaml", do(t, "kubectl", "get", "gateway-api", "-A", "-o", "yaml"))
	pods := do(t, "kubectl", "get", "pods", "-A", "-o", `jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}`)
	for line := range strings.Lines(pods) {
		if names := strings.Fields(line); len(names) == 2 {
			write(names[0]+"-"+names[1]+".log", do(t, "kubectl", "logs", "-n", names[0], names[1], "--all-containers", "--tail=500"))
		}
	}
}

func TestPlanesNameTestsAndFeaturesOfTheSuite(t *testing.T) {
	t.Setenv("VERSION", "v1.2.3")
	entries, err := planes.ReadDir("planes")
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".yaml")
		p, err := planeNamed(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, test := range slices.Sorted(maps.Keys(p.Fails)) {
			if !slices.ContainsFunc(tests.ConformanceTests, named(test)) || p.Fails[test] == "" {
				err = errors.Join(err, fmt.Errorf("%q is no test, or has no reason", test))
			}
		}
		for _, f := range slices.Sorted(maps.Keys(p.Unsupported)) {
			if features.GetFeature(f).Name == "" || p.Unsupported[f] == "" {
				err = errors.Join(err, fmt.Errorf("%q is no feature, or has no reason", f))
			}
		}
		if err := errors.Join(err, p.Implementation.Validate()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, mesh := range []bool{false, true} {
			have := p.features(mesh)
			if have.Has(features.SupportMesh) != mesh || have.Has(features.SupportGateway) == mesh || !have.Has(features.SupportHTTPRoute) {
				t.Errorf("%s: features with mesh %v are %v", name, mesh, sets.List(have))
			}
		}
	}
}
