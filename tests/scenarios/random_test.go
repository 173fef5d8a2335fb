package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit/protorand"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/runner"
)

var (
	randomObjects = flag.Int("random", 150, "how many random objects TestEnvoyTakesWhatIsAccepted applies")
	randomSeed    = flag.Uint64("seed", 1, "first seed of those objects")
)

// anyKinds are the kinds that random objects are of.
var anyKinds = []struct {
	version, kind string
	spec          func() proto.Message
}{
	{"networking.istio.io/v1", "VirtualService", func() proto.Message { return &networking.VirtualService{} }},
	{"networking.istio.io/v1", "DestinationRule", func() proto.Message { return &networking.DestinationRule{} }},
	{"networking.istio.io/v1", "ServiceEntry", func() proto.Message { return &networking.ServiceEntry{} }},
	{"networking.istio.io/v1", "WorkloadEntry", func() proto.Message { return &networking.WorkloadEntry{} }},
	{"networking.istio.io/v1", "Gateway", func() proto.Message { return &networking.Gateway{} }},
	{"networking.istio.io/v1", "Sidecar", func() proto.Message { return &networking.Sidecar{} }},
	{"security.istio.io/v1", "PeerAuthentication", func() proto.Message { return &security.PeerAuthentication{} }},
	{"networking.istio.io/v1alpha3", "EnvoyFilter", func() proto.Message { return &networking.EnvoyFilter{} }},
}

// together is how many random objects are there at a time: they meet, and a rejection has few causes.
const together = 6

// TestEnvoyTakesWhatIsAccepted applies objects with random fields, and those of corpus/, which proxies refused once, or
// would if they were built carelessly. What validation lets pass, every proxy must take.
func TestEnvoyTakesWhatIsAccepted(t *testing.T) {
	needs(t)
	// The applications' ports are none that objects draw: a proxy cannot listen where an application does.
	ports := []format.Port{{Name: "http", Port: 80, TargetPort: 18080}, {Name: "tcp", Port: 9090, TargetPort: 19090},
		{Name: "auto", Port: 8080, TargetPort: 18081}, {Name: "http-85", Port: 85, TargetPort: 18085}}
	topology := &format.Topology{
		Name: "random", Namespaces: map[string]map[string]string{"apps": nil, "other": nil, "gateways": nil, format.RootNamespace: nil},
		Workloads: []format.Workload{
			{Name: "client", Namespace: "apps", Ports: ports},
			{Name: "server", Namespace: "apps", Labels: map[string]string{"version": "v1"}, Ports: ports},
			{Name: "other", Namespace: "other", Ports: ports},
			{Name: "ingress", Namespace: "gateways", Kind: format.Gateway, Labels: map[string]string{"istio": "ingressgateway"}},
		},
	}
	if err := topology.Complete(); err != nil {
		t.Fatal(err)
	}
	fleet, err := newFleet(t, topology, nil, filepath.Join(outDir(t), topology.Name), place{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("corpus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	empty, err := fleet.Mark(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !takes(t, fleet, file, string(raw)) {
			t.Errorf("%s is refused: remove it, or what it shows from it", file)
		}
		if err := fleet.Reset(ctx, empty); err != nil {
			t.Errorf("after %s: %v", file, err)
		}
	}
	accepted := 0
	for i := range *randomObjects {
		k := anyKinds[i%len(anyKinds)]
		seed := *randomSeed + uint64(i) //nolint:gosec // not negative
		text, err := manifest(k.version, k.kind, fmt.Sprint("random-", i%together), k.spec(), seed)
		if err != nil {
			continue // text that is no UTF-8
		}
		if takes(t, fleet, fmt.Sprintf("%s of seed %d", k.kind, seed), text) {
			accepted++
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d random objects were accepted", accepted, *randomObjects)
	if *randomObjects >= 100 && accepted < *randomObjects/10 {
		t.Errorf("only %d of %d random objects were accepted", accepted, *randomObjects)
	}
}

// takes applies a text; it reports whether it was accepted, and fails the test if a proxy did not take it.
func takes(t *testing.T, h running, name, text string) (accepted bool) {
	t.Helper()
	ctx := context.Background()
	err := h.Apply(ctx, text, true)
	if errors.Is(err, runner.ErrRefused) {
		t.Logf("refused %s: %v", name, err)
		return false
	}
	if err != nil {
		t.Errorf("%s: validation accepted it, and then: %v\n%s", name, err, text)
		for _, line := range h.Evidence(ctx, "random") {
			t.Log(line)
		}
	}
	t.Logf("accepted %s: %s", name, text)
	for _, died := range h.Died() {
		t.Errorf("after %s: %s\n%s", name, died, text)
	}
	return true
}

// api draws for the machines of this test: a listener can be bound to their own addresses only.
var api = func() *protorand.Table {
	table := protorand.Istio
	table.Values = maps.Clone(table.Values)
	table.Values["bind"] = []string{"127.0.0.1", "0.0.0.0"}
	return &table
}()

func manifest(version, kind, name string, spec proto.Message, seed uint64) (string, error) {
	api.FillSeeded(seed, spec)
	raw, err := protojson.Marshal(spec)
	if err != nil {
		return "", err
	}
	namespace := []string{"apps", "other", "gateways", format.RootNamespace}[seed%4]
	text, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": strings.ToLower(name), "namespace": namespace},
		"spec": json.RawMessage(raw),
	})
	return string(text), err
}
