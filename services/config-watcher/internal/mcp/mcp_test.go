package mcp

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit/protorand"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// TestObjectsAreEqualAfterTheWire: random objects of every kind keep every field.
func TestObjectsAreEqualAfterTheWire(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			accepted := 0
			for seed := range uint64(400) {
				spec := k.NewSpec()
				protorand.Istio.FillSeeded(seed, spec)
				o := &object.Object{Key: object.Key{Group: k.Group, Kind: k.Name, Namespace: "apps", Name: "random"}, Body: spec,
					Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d", "e": ""},
					Created: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)}
				raw, version, err := Encode(o, "")
				if err != nil {
					continue // text that is no UTF-8
				}
				d := Decode(k, &anypb.Any{TypeUrl: ResourceType, Value: raw})
				if d.Object == nil {
					if len(d.Problems) == 0 || d.Key != o.Key {
						t.Errorf("seed %d: %v without a reason", seed, d.Key)
					}
					continue
				}
				accepted++
				again, sameVersion, err := Encode(d.Object, "")
				if err != nil || string(again) != string(raw) || sameVersion != version || !Equal(o, d.Object) {
					t.Fatalf("seed %d: %v\nsent %v\ngot  %v", seed, err, spec, d.Object.Body)
				}
			}
			if accepted == 0 {
				t.Error("no object was accepted")
			}
		})
	}
}

// entryOf is a ServiceEntry as a server sends it, changed.
func entryOf(t testing.TB, change func(*mcpv1alpha1.Resource)) *anypb.Any {
	t.Helper()
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"a.example.com"}, Resolution: networking.ServiceEntry_DNS,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}})
	if err != nil {
		t.Fatal(err)
	}
	m := &mcpv1alpha1.Resource{Metadata: &mcpv1alpha1.Metadata{Name: "apps/a"}, Body: body}
	change(m)
	out, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHostileEntries: what cannot be used is named, and has a key only if its name could be read.
func TestHostileEntries(t *testing.T) {
	half := entryOf(t, func(*mcpv1alpha1.Resource) {})
	body := func(change func(*anypb.Any)) *anypb.Any {
		return entryOf(t, func(m *mcpv1alpha1.Resource) { change(m.Body) })
	}
	typed := func(url string) *anypb.Any {
		return body(func(a *anypb.Any) { a.TypeUrl = "type.googleapis.com/" + url })
	}
	half.Value = half.Value[:len(half.Value)/2]
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 5000, protowire.VarintType), 1)
	for name, c := range map[string]struct {
		entry *anypb.Any
		named bool
		want  string // "" for an entry that can be used
	}{
		"good":             {entryOf(t, func(*mcpv1alpha1.Resource) {}), true, ""},
		"times of zero":    {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.CreateTime = timestamppb.New(time.Time{}) }), true, ""},
		"a time of 1600":   {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.CreateTime = &timestamppb.Timestamp{Seconds: 1 << 60} }), true, ""},
		"no name":          {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata = nil }), false, "is not namespace/name"},
		"no slash":         {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.Name = "a" }), false, "is not namespace/name"},
		"two slashes":      {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.Name = "a/b/c" }), false, "is not namespace/name"},
		"no namespace":     {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.Name = "/b" }), false, "is not namespace/name"},
		"a bad name":       {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Metadata.Name = "apps/A_b" }), true, "metadata.name"},
		"no body":          {entryOf(t, func(m *mcpv1alpha1.Resource) { m.Body = nil }), true, "is no istio.networking.v1alpha3."},
		"another body":     {typed("istio.networking.v1alpha3.Sidecar"), true, "is no "},
		"another version":  {typed("istio.networking.v1.ServiceEntry"), true, ""},
		"half a body":      {body(func(a *anypb.Any) { a.Value = a.Value[:len(a.Value)-1] }), true, "cannot be decoded"},
		"an unknown field": {body(func(a *anypb.Any) { a.Value = append(a.Value, unknown...) }), true, "does not know"},
		"cut in half":      {half, false, "cut off"},
		"another message":  {&anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Struct"}, false, "is no type.googleapis.com/istio.mcp"},
		"nothing":          {nil, false, "is no "},
		"too large": {entryOf(t, func(m *mcpv1alpha1.Resource) {
			m.Metadata.Annotations = map[string]string{"a": strings.Repeat("x", 4<<20)}
		}), true, "bytes, more than"},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decode(kinds.Find(kinds.GroupNetworking, "ServiceEntry"), c.entry)
			if (d.Key.Name != "") != c.named {
				t.Errorf("key %v, want named: %t", d.Key, c.named)
			}
			switch {
			case c.want == "" && d.Object == nil:
				t.Errorf("refused: %v", d.Problems)
			case c.want != "" && (d.Object != nil || !strings.Contains(d.Problems.Error(), c.want) || d.Problems[0].Remedy == ""):
				t.Errorf("got %v, %v; want %q with a remedy", d.Object, d.Problems, c.want)
			}
		})
	}
}

// TestABrokenPolicyHoldsClosed: without a good version, what a policy selects is closed.
func TestABrokenPolicyHoldsClosed(t *testing.T) {
	body, err := anypb.New(&security.AuthorizationPolicy{Action: 77})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(&mcpv1alpha1.Resource{Metadata: &mcpv1alpha1.Metadata{Name: "apps/a"}, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range [][]byte{raw, raw[:len(raw)-1]} {
		d := Decode(kinds.Find(kinds.GroupSecurity, "AuthorizationPolicy"), &anypb.Any{TypeUrl: ResourceType, Value: value})
		if d.Object != nil || d.Key.Name != "" && (d.Hold == nil || !d.Hold.Object.Held || d.Hold.Object.Key != d.Key) {
			t.Errorf("got %+v", d)
		}
	}
}

func TestURLs(t *testing.T) {
	for _, k := range Kinds() {
		for _, v := range k.Versions {
			if ParseURL(URL(k, v)) != k {
				t.Errorf("%s is not parsed", URL(k, v))
			}
		}
	}
	for _, url := range []string{"", "//", "networking.istio.io/v9/ServiceEntry", "/v1/Secret", "core/v1alpha1/MeshConfig",
		"networking.istio.io/v1/ServiceEntry/x", "type.googleapis.com/envoy.config.cluster.v3.Cluster"} {
		if k := ParseURL(url); k != nil {
			t.Errorf("%q is %s", url, k.Name)
		}
	}
}
