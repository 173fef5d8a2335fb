package validate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/protorand"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// TestRandomObjects makes objects of every kind of the traffic and security APIs, templates aside, with random fields.
// No check may panic, every refusal names a field and a remedy, and enough objects are accepted that every check runs.
func TestRandomObjects(t *testing.T) {
	for _, k := range kinds.All() {
		if k.NewSpec == nil || k.Name == "WorkloadGroup" || k.Group != kinds.GroupNetworking && k.Group != kinds.GroupSecurity {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			const objects = 1000
			accepted := 0
			reasons := map[string]int{}
			for seed := range uint64(objects) {
				spec := k.NewSpec()
				protorand.Istio.FillSeeded(seed, spec)
				if err := documented(t, k, spec); err != nil {
					reasons[err.Error()]++
				} else {
					accepted++
				}
			}
			t.Logf("%d of %d accepted", accepted, objects)
			if accepted < objects/50 {
				t.Errorf("only %d of %d were accepted: the table of values does not fit the rules; refused were, for example,\n%s", accepted, objects,
					examples(reasons))
			}
		})
	}
}

// documented passes an object through the parser and the checks.
func documented(t *testing.T, k kinds.Kind, spec proto.Message) error {
	t.Helper()
	raw, err := protojson.Marshal(spec)
	if err != nil { // text that is no UTF-8
		return err
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": k.Canonical(), "kind": k.Name,
		"metadata": map[string]any{"name": "random", "namespace": "apps"}, "spec": json.RawMessage(raw),
	})
	if err != nil {
		t.Fatal(err)
	}
	docs, problems := manifest.Parse("random", text)
	if len(problems) > 0 || len(docs) != 1 {
		t.Fatalf("%s: %v", text, problems)
	}
	if _, err = Document(docs[0]); err != nil && strings.Contains(err.Error(), "defect of Fairlead") {
		t.Errorf("a rule panicked: %v: %s", err, text)
	}
	return err
}

// TestAcceptedSeeds: validation accepts the random objects that other services' tests use as accepted ones.
func TestAcceptedSeeds(t *testing.T) {
	const objects, enough = 2000, 200
	var list strings.Builder
	add := func(name string, newSpec func() proto.Message, accepts func(proto.Message) bool) {
		list.WriteString(name)
		accepted := 0
		for seed := uint64(0); seed < objects && accepted < enough; seed++ {
			spec := newSpec()
			protorand.Normalised.FillSeeded(seed, spec)
			if accepts(spec) {
				accepted++
				fmt.Fprintf(&list, " %d", seed)
			}
		}
		list.WriteByte('\n')
	}
	for _, name := range []string{"VirtualService", "DestinationRule", "Gateway", "Sidecar", "PeerAuthentication", "AuthorizationPolicy",
		"RequestAuthentication", "EnvoyFilter"} {
		all := kinds.All()
		k := all[slices.IndexFunc(all, func(k kinds.Kind) bool { return k.Name == name && k.NewSpec != nil })]
		add(name, k.NewSpec, func(spec proto.Message) bool { return documented(t, k, spec) == nil })
	}
	add("MeshConfig", func() proto.Message { return &mesh.MeshConfig{} }, func(spec proto.Message) bool {
		raw, err := protojson.Marshal(spec)
		if err != nil { // text that is no UTF-8
			return false
		}
		_, _, problems := meshconfig.Parse("random", raw)
		return len(problems) == 0
	})
	testkit.Golden(t, "../../../../pkg/testkit/protorand/accepted.txt", []byte(list.String()))
}

func examples(reasons map[string]int) string {
	var out []string
	for reason := range reasons {
		if out = append(out, reason); len(out) == 12 {
			break
		}
	}
	return strings.Join(out, "\n")
}
