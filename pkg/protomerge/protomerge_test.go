package protomerge_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"fairlead.dev/pkg/protomerge"
)

func parse(t *testing.T, text string) *bootstrapv3.Bootstrap {
	t.Helper()
	m := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMerge(t *testing.T) {
	const node = `"@type": "type.googleapis.com/envoy.config.core.v3.Node"`
	for name, c := range map[string]struct {
		into, from, want string
		replace          bool
	}{
		"a scalar is replaced": {`{"headerPrefix": "a", "flagsPath": "f"}`, `{"headerPrefix": "b"}`,
			`{"headerPrefix": "b", "flagsPath": "f"}`, false},
		"messages are merged": {`{"admin": {"profilePath": "a"}}`, `{"admin": {"ignoreGlobalConnLimit": true}}`,
			`{"admin": {"profilePath": "a", "ignoreGlobalConnLimit": true}}`, false},
		"a duration is one value": {`{"statsFlushInterval": "5s"}`, `{"statsFlushInterval": "0.5s"}`,
			`{"statsFlushInterval": "0.5s"}`, false},
		"a wrapped scalar too": {`{"statsFlushOnAdmin": true, "enableDispatcherStats": true}`,
			`{"enableDispatcherStats": true}`, `{"statsFlushOnAdmin": true, "enableDispatcherStats": true}`, false},
		"a list is appended to": {`{"statsSinks": [{"name": "a"}]}`, `{"statsSinks": [{"name": "b"}]}`,
			`{"statsSinks": [{"name": "a"}, {"name": "b"}]}`, false},
		"a list is replaced": {`{"statsSinks": [{"name": "a"}]}`, `{"statsSinks": [{"name": "b"}]}`,
			`{"statsSinks": [{"name": "b"}]}`, true},
		"a map gets entries": {`{"certificateProviderInstances": {"a": {"name": "x"}, "b": {"name": "x"}}}`,
			`{"certificateProviderInstances": {"b": {"name": "y"}}}`, `{"certificateProviderInstances": {"a": {"name": "x"}, "b": {"name": "y"}}}`,
			false},
		"contents of two Anys of one type are merged": {`{"defaultRegexEngine": {"name": "a", "typedConfig": {` + node + `, "id": "a"}}}`,
			`{"defaultRegexEngine": {"typedConfig": {` + node + `, "cluster": "b"}}}`, `{"defaultRegexEngine": {"name": "a", "typedConfig": {` +
				node + `, "id": "a", "cluster": "b"}}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			into, from, want := parse(t, c.into), parse(t, c.from), parse(t, c.want)
			before := proto.Clone(from)
			if err := (protomerge.Rules{ReplaceLists: c.replace}).Merge(into, from); err != nil || !proto.Equal(into, want) {
				t.Errorf("got %v, %v, want %v", into, err, want)
			}
			if !proto.Equal(from, before) {
				t.Error("what was merged has changed")
			}
		})
	}
}

func TestMergeUnknownType(t *testing.T) {
	into, from := parse(t, `{"defaultRegexEngine": {"typedConfig": {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}}}}`),
		parse(t, `{"defaultRegexEngine": {"name": "x"}}`)
	into.GetDefaultRegexEngine().GetTypedConfig().TypeUrl = "type.googleapis.com/none"
	from.GetDefaultRegexEngine().TypedConfig = into.GetDefaultRegexEngine().GetTypedConfig()
	if err := (protomerge.Rules{}).Merge(into, proto.CloneOf(from)); err == nil || !strings.Contains(err.Error(), "type.googleapis.com/none") {
		t.Errorf("error %v, want one that names the type", err)
	}
}
