package running

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
)

const scenarios = "../../../../../tests/scenarios"

// topology is the part of a scenario's topology that these tests read.
type topology struct {
	Namespaces map[string]map[string]string `json:"namespaces"`
	Mesh       string                       `json:"mesh"`
	Services   string                       `json:"services"`
	Workloads  []struct {
		Name, Namespace, Service string
		Labels                   map[string]string
		Start                    *bool
		Ports                    []struct {
			Name       string
			Port       int
			TargetPort int
		}
	} `json:"workloads"`
}

type step struct {
	Apply       string   `json:"apply"`
	ApplyNoWait string   `json:"applyNoWait"`
	Delete      []string `json:"delete"`
	Eventually  *struct {
		Steps []step `json:"steps"`
	} `json:"eventually"`
}

type scenario struct {
	Name     string          `json:"name"`
	Topology json.RawMessage `json:"topology"`
	Steps    []step          `json:"steps"`
}

func read(t *testing.T, path string, out any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// documents are the objects of a topology.
func (top *topology) documents() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	add("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: %q}}", top.Mesh)
	for name, labels := range top.Namespaces {
		js, _ := json.Marshal(labels)
		add("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: %s}}", name, js)
	}
	written := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)metadata: *\{name: ([a-z0-9-]+), namespace: ([a-z0-9-]+)`).FindAllStringSubmatch(top.Services,
		-1) {
		written[m[2]+"/"+m[1]] = true
	}
	ports := map[string]string{}
	for _, w := range top.Workloads {
		if w.Service == "" {
			w.Service = w.Name
		}
		if w.Start == nil || *w.Start {
			labels := map[string]string{"app": w.Service}
			if w.Service == "none" {
				labels["app"] = w.Name
			}
			maps.Copy(labels, w.Labels)
			js, _ := json.Marshal(labels)
			add("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: %s}, spec: {containers: [{name: app, image: app}]}, "+
				"status: {phase: Running, podIP: 10.0.0.1}}", w.Name, w.Namespace, js)
		}
		key := w.Namespace + "/" + w.Service
		if w.Service == "none" || written[key] {
			continue
		}
		if len(w.Ports) == 0 {
			ports[key] = "{name: http, port: 80}, {name: http2, port: 85}, {name: grpc, port: 7070}, {name: tcp, port: 9090}, {name: tcp-first, " +
				"port: 9091}, " +
				"{name: https, port: 443}, {name: auto-http, port: 81}, {name: auto-tcp, port: 9092}"
			continue
		}
		var list []string
		for _, p := range w.Ports {
			list = append(list, fmt.Sprintf("{name: %s, port: %d}", p.Name, p.Port))
		}
		ports[key] = strings.Join(list, ", ")
	}
	for key, list := range ports {
		ns, name, _ := strings.Cut(key, "/")
		add("{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {selector: {app: %s}, ports: [%s]}}", name, ns, name,
			list)
	}
	return append(out, top.Services)
}

var variable = regexp.MustCompile(`(?m)([^\n]*?)\$\{([a-zA-Z0-9]+):([^}]*)\}`)

// stands replaces the variables of a scenario by values of the same form.
func stands(t *testing.T, text string) string {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("a.example.com")
	values := map[string]string{
		"ip": "10.0.0.2", "vip": "10.0.0.3", "identity": "spiffe://cluster.local/ns/apps/sa/client", "files": "/etc/files",
		"cert": string(chain), "chain": string(chain), "key": string(key), "crl": string(ca.Revoke(big.NewInt(7))),
		"jwksUri": "http://10.0.0.4/keys.json", "jwksHttpsUri": "https://keys.example.com/keys.json", "jwksIssuer": "http://10.0.0.4",
		"jwks": `{"keys":[]}`, "jwt": "e30.e30.e30",
	}
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		m := variable.FindStringSubmatch(found)
		before, kind := m[1], m[2]
		plain, coded := strings.CutSuffix(kind, "64")
		value := strings.TrimSuffix(values[plain], "\n")
		switch {
		case coded:
			value = base64.StdEncoding.EncodeToString([]byte(values[plain]))
		case !strings.Contains(value, "\n"):
		case strings.TrimSpace(before) == "":
			value = strings.ReplaceAll(value, "\n", "\n"+before)
		case strings.HasSuffix(before, `"`):
			value = strings.ReplaceAll(value, "\n", `\n`)
		default:
			js, _ := json.Marshal(value)
			value = string(js)
		}
		return before + value
	})
}

// play applies the objects of a scenario and collects the findings after each step.
func (f *fixture) play(steps []step, gather func()) {
	t := f.t.(*testing.T)
	for _, s := range steps {
		if text := s.Apply + s.ApplyNoWait; text != "" {
			f.apply(stands(t, text))
			gather()
		}
		if len(s.Delete) > 0 {
			for _, name := range s.Delete {
				parts := strings.Split(name, "/")
				f.remove(parts[0] + " " + strings.Join(parts[1:], "/"))
			}
			gather()
		}
		if s.Eventually != nil {
			f.play(s.Eventually.Steps, gather)
		}
	}
}

// TestScenarios lists the findings about the meshes of the scenarios, the corpus of what people write: a finding that a
// scenario does not intend is a false alarm. Review each change of the list.
func TestScenarios(t *testing.T) {
	var out strings.Builder
	files, err := filepath.Glob(filepath.Join(scenarios, "*/*.yaml"))
	if err != nil || len(files) < 300 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		if filepath.Base(dir) != "cases" && filepath.Base(dir) != "examples" {
			continue
		}
		var sc scenario
		read(t, file, &sc)
		var top topology
		var name string
		if json.Unmarshal(sc.Topology, &name) == nil {
			path := filepath.Join(dir, "topologies", name+".yaml")
			if _, err := os.Stat(path); err != nil {
				path = filepath.Join(scenarios, "topologies", name+".yaml")
			}
			read(t, path, &top)
		} else if err := json.Unmarshal(sc.Topology, &top); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		t.Run(sc.Name, func(t *testing.T) {
			f := newFixture(t)
			f.apply(stands(t, strings.Join(top.documents(), "\n---\n")))
			found := map[string]bool{}
			gather := func() {
				for _, line := range f.short() {
					found[line] = true
				}
			}
			gather()
			f.play(sc.Steps, gather)
			for _, line := range slices.Sorted(maps.Keys(found)) {
				fmt.Fprintf(&out, "%s: %s\n", sc.Name, line)
			}
			f.sameFromScratch()
		})
	}
	testkit.Golden(t, "testdata/scenarios.txt", []byte(out.String()))
}

// sameFromScratch compares the findings with those of a mesh that receives all objects at once.
func (f *fixture) sameFromScratch() {
	f.t.Helper()
	fresh := New("")
	fresh.Configure(f.settings)
	fresh.Apply(f.present())
	fresh.Analyze(0)
	if got, want := texts(f.All()), texts(fresh.All()); !slices.Equal(got, want) {
		f.t.Errorf("kept up to date\n  %s\nfrom scratch\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
