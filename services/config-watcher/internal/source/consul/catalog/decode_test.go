package catalog

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(content string) *bounded {
	return &bounded{from: strings.NewReader(content), until: maxEntry, all: new(atomic.Int64)}
}

func TestAnswersAreBounded(t *testing.T) {
	instance := func(meta string) string {
		return `{"Node": {"Node": "n"}, "Service": {"ID": "i", "Service": "db", "Meta": {` + meta + `}}}`
	}
	var pairs []string
	for i := range maxPairs + 1 {
		pairs = append(pairs, fmt.Sprintf(`"%d": ""`, i))
	}
	for want, content := range map[string]string{
		errTooLarge.Error():      "[" + strings.Repeat(instance(`"a": "`+strings.Repeat("x", 1<<19)+`"`)+",", 129),
		errEntry.Error():         "[" + instance(`"a": "`+strings.Repeat("x", 3<<20)+`"`) + "]",
		"more tags, meta":        "[" + instance(strings.Join(pairs, ",")) + "]",
		"more than 50000 servic": `{"x": [` + strings.Repeat(`"a",`, 1000) + `"a"]` + numbered(MaxServices) + "}",
	} {
		_, err := decodeInstances(read(content), "DB")
		if content[0] == '{' {
			_, err = decodeNames(read(content))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	b := read("{}")
	b.all.Add(maxAtOnce + 1)
	if _, err := decodeNames(b); !errors.Is(err, errAtOnce) {
		t.Errorf("while much is decoded: %v", err)
	}
}

func numbered(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, `,"%d":[]`, i)
	}
	return out.String()
}

func TestInstancesAreRead(t *testing.T) {
	got, err := decodeInstances(read(`[
		{"Node": {"ID": "x", "Node": "n2", "Address": "10.0.0.2", "Datacenter": "dc1", "TaggedAddresses": {"lan_ipv4": "10.0.0.2"},
			"Meta": {"rack": "4"}, "Locality": {"Region": "eu"}},
		 "Service": {"Kind": "connect-proxy", "ID": "web-2", "Service": "web", "Port": 0, "Ports": [{"Name": "http", "Port": 80, "Default": true}],
			"Tags": ["v1"], "Meta": null, "Weights": {"Passing": 10, "Warning": 0}, "Locality": {"Region": "eu", "Zone": "a"},
			"TaggedAddresses": {"wan": {"Address": "1.2.3.4", "Port": 81}}},
		 "Checks": [{"CheckID": "serfHealth", "Status": "passing"}, {"CheckID": "a", "Status": "warning", "Output": "slow"}]},
		{"Node": {"Node": "n1", "Address": "10.0.0.1"}, "Service": {"ID": "web-1", "Service": "web", "Address": "db.example.com", "Port": 8080}},
		{"Node": {"Node": "n1"}, "Service": {"ID": "Web-1", "Service": "Web"}}
	]`), "web")
	if err != nil {
		t.Fatal(err)
	}
	want := []Instance{
		{Node: "n1", NodeAddress: "10.0.0.1", ID: "web-1", Service: "web", Address: "db.example.com", Port: 8080, Weights: Weights{1, 1},
			Status: Passing},
		{Node: "n2", Datacenter: "dc1", NodeAddress: "10.0.0.2", NodeTaggedAddresses: map[string]string{"lan_ipv4": "10.0.0.2"},
			NodeMeta: map[string]string{"rack": "4"}, ID: "web-2", Service: "web", Kind: "connect-proxy", Ports: map[string]int{"http": 80},
			TaggedAddresses: map[string]Address{"wan": {"1.2.3.4", 81}}, Tags: []string{"v1"}, Weights: Weights{10, 0},
			Locality: Locality{"eu", "a"}, Status: Warning},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheWorstCheckCounts(t *testing.T) {
	for checks, want := range map[string]string{
		"": Passing, "a passing": Passing, "a passing,b warning": Warning, "a critical,b warning": Critical, "a unheard-of": Critical,
		"a ": Critical, "_node_maintenance critical,a passing": Maintenance, "a critical,_service_maintenance:web critical": Maintenance,
	} {
		var e entry
		for c := range strings.SplitSeq(checks, ",") {
			if id, status, found := strings.Cut(c, " "); found {
				e.Checks = append(e.Checks, struct{ CheckID, Status string }{id, status})
			}
		}
		if got := e.status(); got != want {
			t.Errorf("%q: %s, want %s", checks, got, want)
		}
	}
}

func TestAnswersThatAreNotWhole(t *testing.T) {
	const one = `{"Node": {"Node": "n"}, "Service": {"ID": "i", "Service": "web"}}`
	for content, want := range map[string]string{
		"": "EOF", "null": "in the place of [", "{}": "in the place of [", "[": "EOF", "[" + one: "EOF", "[" + one + ",": "EOF",
		"[" + one + "]]": "invalid character", "[] []": "something follows", "[" + one + "," + one + "]": "is there twice",
		`[{"Node": 7}]`: "cannot unmarshal",
		`[{"Service": {"ID": "i", "Service": "web"}}]`: "no node", `[{"Node": {"Node": "n"}, "Service": {"Service": "web"}}]`: "no id",
		`[{"Node": {"Node": "n"}, "Service": {"ID": "i", "Service": "db"}}]`: `about service "db"`,
		strings.Repeat("[", 100_000):                                         "max depth",
	} {
		if got, err := decodeInstances(read(content), "web"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, %v, want %q", content, got, err, want)
		}
	}
	for content, want := range map[string]string{
		"null": "in the place of {", "[]": "in the place of {", "{": "EOF", `{"a": []`: "EOF", `{"a": {}}`: "cannot unmarshal",
		`{} {}`: "something follows",
	} {
		if got, err := decodeNames(read(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, %v, want %q", content, got, err, want)
		}
	}
	if got, err := decodeNames(read(`{"b": null, "a": ["x"], "b": []}`)); err != nil || cmp.Diff([]string{"a", "b"}, got) != "" {
		t.Errorf("names: %v, %v", got, err)
	}
}

// FuzzAnswers checks that no answer makes a decoder panic, and that instances come sorted and once each.
func FuzzAnswers(f *testing.F) {
	f.Add(`[{"Node": {"Node": "n"}, "Service": {"ID": "i", "Service": "web"}, "Checks": [{"CheckID": "x", "Status": "passing"}]}]`)
	f.Add(`{"web": ["v1"], "db": []}`)
	f.Fuzz(func(t *testing.T, content string) {
		instances, _ := decodeInstances(read(content), "web")
		for i := 1; i < len(instances); i++ {
			if Compare(instances[i-1], instances[i]) >= 0 {
				t.Errorf("%q and %q", instances[i-1].key(), instances[i].key())
			}
		}
		_, _ = decodeNames(read(content))
	})
}
