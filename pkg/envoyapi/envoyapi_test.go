package envoyapi

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lua "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
)

const module = "github.com/envoyproxy/go-control-plane/envoy"

// TestEveryTypeIsKnown compares the linked packages with those of the module go-control-plane.
func TestEveryTypeIsKnown(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	var want []string
	third := regexp.MustCompile(`^(config|extensions|type)/.*/?v3[a-z]*$`)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".pb.go") {
			return err
		}
		rel, err := filepath.Rel(dir, filepath.Dir(path))
		if third.MatchString(filepath.ToSlash(rel)) {
			want = append(want, module+"/"+filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	source, err := os.ReadFile("types.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`_ "(`+regexp.QuoteMeta(module)+`/[^"]+)"`).FindAllSubmatch(source, -1) {
		got = append(got, string(m[1]))
	}
	slices.Sort(got)
	if len(want) < 300 || !slices.Equal(got, want) {
		t.Errorf("%d of %d packages are linked in", len(got), len(want))
	}
}

func decode(t *testing.T, applyTo networking.EnvoyFilter_ApplyTo, fields map[string]any) (proto.Message, error) {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return Decode(applyTo, s)
}

func TestDecode(t *testing.T) {
	const luaURL = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
	filter := func(config map[string]any) map[string]any { return map[string]any{"name": "a", "typed_config": config} }
	code := map[string]any{"default_source_code": map[string]any{"inline_string": "x"}}
	with := func(m map[string]any, k string, v any) map[string]any {
		out := map[string]any{k: v}
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		config map[string]any
		fails  string
	}{
		"typed":                 {config: with(code, "@type", luaURL)},
		"typed struct":          {config: map[string]any{"@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "type_url": luaURL, "value": code}},
		"new typed struct":      {config: map[string]any{"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "typeUrl": luaURL, "value": code}},
		"unknown fields":        {config: with(with(code, "@type", luaURL), "a", map[string]any{"b": "c"})},
		"unknown type":          {config: map[string]any{"@type": "type.googleapis.com/a.B"}, fails: "could not resolve"},
		"struct of no type":     {config: map[string]any{"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "typeUrl": "a.B"}, fails: `unknown type "a.B"`},
		"struct of other field": {config: map[string]any{"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "typeUrl": luaURL, "value": map[string]any{"a": "b", "default_source_code": map[string]any{"inline_string": "x", "c": 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := decode(t, networking.EnvoyFilter_HTTP_FILTER, filter(c.config))
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want %s", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := &lua.Lua{}
			if err := m.(*manager.HttpFilter).GetTypedConfig().UnmarshalTo(got); err != nil || got.GetDefaultSourceCode().GetInlineString() != "x" {
				t.Errorf("%v, %v", m, err)
			}
		})
	}
	m, err := decode(t, networking.EnvoyFilter_CLUSTER, map[string]any{"connect_timeout": "1m0.5s"})
	if err != nil || m.(*cluster.Cluster).GetConnectTimeout().AsDuration() != 60500*time.Millisecond {
		t.Errorf("a duration in Go's form: %v, %v", m, err)
	}
	if m, err := decode(t, networking.EnvoyFilter_INVALID, nil); err == nil {
		t.Errorf("nothing to apply to: %v", m)
	}
}

// TestValidate: messages that are packed at any depth are validated.
func TestValidate(t *testing.T) {
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	good := &core.TypedExtensionConfig{Name: "a", TypedConfig: pack(&core.TypedExtensionConfig{Name: "b", TypedConfig: pack(&cluster.Cluster{Name: "c"})})}
	if err := Validate(good); err != nil {
		t.Error(err)
	}
	bad := &core.TypedExtensionConfig{Name: "a", TypedConfig: pack(&core.TypedExtensionConfig{Name: "b", TypedConfig: pack(&cluster.Cluster{})})}
	if err := Validate(bad); err == nil || !strings.Contains(err.Error(), "Cluster.Name") {
		t.Errorf("error %v", err)
	}
	if err := Validate(&core.TypedExtensionConfig{Name: "a", TypedConfig: &anypb.Any{TypeUrl: "x/a.B"}}); err == nil {
		t.Error("a type that nobody knows passes")
	}
}

func TestAgentsOwn(t *testing.T) {
	for value, want := range map[string][]string{
		`{"stats_flush_interval": "7s", "admin": {"profile_path": "a"}}`:                                nil,
		`{"node": {"id": "a"}, "admin": {"address": {"pipe": {"path": "a"}}}, "dynamic_resources": {}}`: {"node", "admin.address", "dynamic_resources"},
	} {
		s := &structpb.Struct{}
		if err := s.UnmarshalJSON([]byte(value)); err != nil {
			t.Fatal(err)
		}
		m, err := Decode(networking.EnvoyFilter_BOOTSTRAP, s)
		if got := AgentsOwn(m); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", value, got, err, want)
		}
	}
}
