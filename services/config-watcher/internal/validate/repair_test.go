package validate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// TestOneMistakeHidesNoOther: of several mistakes of different kinds in one object each is reported, and no problem
// that only follows from another.
func TestOneMistakeHidesNoOther(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []string // fields of the problems
	}{
		{"unknown fields and rules", of("VirtualService",
			"{hosts: [a], zzz: 1, http: [{timout: 1s, retries: {attempts: -1}, route: [{destination: {host: '*'}, wieght: 1}]}]}"),
			[]string{"spec.http[0].retries.attempts", "spec.http[0].route[0].destination.host", "spec.http[0].route[0].wieght",
				"spec.http[0].timout", "spec.zzz"}},
		{"a misspelt field is not missed", of("VirtualService", "{hots: [a], http: [{rout: [{destination: {host: '*'}}], timeout: 1us}]}"),
			[]string{"spec.hots", "spec.http[0].rout", "spec.http[0].timeout"}},
		{"what has the wrong type is not missed",
			of("ServiceEntry", "{hosts: a.com, resolution: DNZ, ports: [{number: much, name: http}, {number: 70000, name: a}]}"),
			[]string{"spec.hosts", "spec.ports[0].number", "spec.ports[1].number", "spec.resolution"}},
		{"items keep their places", of("Sidecar", "{egress: [{hosts: [5, a]}]}"), []string{"spec.egress[0].hosts[0]", "spec.egress[0].hosts[1]"}},
		{"keys of a map", of("PeerAuthentication",
			"{selector: {matchLabels: {a: '*'}}, portLevelMtls: {http: {mode: STRICT}, 70000: {mode: STRICT}}}"),
			[]string{"spec.portLevelMtls.http", "spec.portLevelMtls[\"70000\"]", "spec.selector.matchLabels.a"}},
		{"the version and the rest", strings.Replace(of("Sidecar", "{egress: [{hosts: [a]}]}"), "/v1\n", "/v7\n", 1),
			[]string{"apiVersion", "spec.egress[0].hosts[0]"}},
		{"metadata and the rest", "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, labels: {a: 1}, lables: {}}\nspec: " +
			"{egress: [{hosts: [a]}]}",
			[]string{"metadata.labels.a", "metadata.lables", "spec.egress[0].hosts[0]"}},
		{"kubernetes", "apiVersion: v1\nkind: Service\nmetadata: {name: a, labels: 1}\nspec: {prts: [], clusterIP: nonsense, ports: [{port: 0, " +
			"nam: b}]}",
			[]string{"metadata.labels", "spec.clusterIP", "spec.ports[0].nam", "spec.ports[0].port", "spec.prts"}},
		{"an object of nothing else", of("Sidecar", "[]"), []string{"spec"}},
		{"misspelt spec", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspecs: {hosts: [a]}",
			[]string{"specs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fields(problemsOf(t, c.yaml)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestOneMistakeOfTheMeshHidesNoOther(t *testing.T) {
	_, _, problems := meshconfig.Parse("",
		[]byte("trustDomain: ''\nconectTimeout: 1s\nproxyListenPort: x\ndefaultConfig: {drainDuration: 1us, statusPort: much}"))
	want := []string{"conectTimeout", "defaultConfig.drainDuration", "defaultConfig.statusPort", "proxyListenPort", "trustDomain"}
	if got := fields(problems); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// fields lists the fields of problems, sorted.
func fields(problems object.Problems) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field)
	}
	slices.Sort(out)
	return out
}

// problemsOf returns the problems of one document.
func problemsOf(t *testing.T, yaml string) object.Problems {
	t.Helper()
	docs, problems := manifest.Parse("f.yaml", []byte(yaml))
	if len(problems) > 0 || len(docs) != 1 {
		t.Fatalf("%d documents, %v", len(docs), problems)
	}
	_, err := Document(docs[0])
	if !errors.As(err, &problems) {
		t.Fatalf("error %v", err)
	}
	return problems
}
