package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Loader reads scenario files.
type Loader struct {
	scenario, topology *jsonschema.Schema
	shipped            fs.FS
	topologies         map[string]*Topology
}

const schemaURL = "scenario.json"

// defaultTimeout is how long a call may take that does not say it.
const defaultTimeout = 5 * time.Second

// NewLoader makes one from schema.json; shipped has a folder topologies for directories that have none of their own.
func NewLoader(schema []byte, shipped fs.FS) (*Loader, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	l := &Loader{shipped: shipped, topologies: map[string]*Topology{}}
	if l.scenario, err = compiler.Compile(schemaURL + "#/$defs/scenario"); err != nil {
		return nil, err
	}
	l.topology, err = compiler.Compile(schemaURL + "#/$defs/topology")
	return l, err
}

// Load reads every scenario directly in dir, sorted by name. All that is wrong is reported at once, by file, line and
// path.
func (l *Loader) Load(dir string) ([]*Scenario, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no scenario there; scenarios are files named *.yaml", dir)
	}
	slices.Sort(files)
	var scenarios []*Scenario
	var mistakes []error
	for _, file := range files {
		s, err := l.scenarioOf(file)
		if err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		scenarios = append(scenarios, s)
	}
	return scenarios, errors.Join(mistakes...)
}

func (l *Loader) scenarioOf(file string) (*Scenario, error) {
	var held struct {
		*Scenario
		Topology json.RawMessage `json:"topology"`
	}
	held.Scenario = &Scenario{File: file}
	raw, err := read(os.DirFS(filepath.Dir(file)), filepath.Base(file), l.scenario, &held)
	if err != nil {
		return nil, inFile(file, raw, err)
	}
	if err := l.complete(held.Scenario, held.Topology); err != nil {
		return nil, inFile(file, raw, err)
	}
	return held.Scenario, nil
}

// complete finds a scenario's topology, and checks what the schema cannot say.
func (l *Loader) complete(s *Scenario, topology json.RawMessage) error {
	if want := strings.TrimSuffix(filepath.Base(s.File), ".yaml"); s.Name != want {
		return wrong("/name", "is %q; name it like the file, %q", s.Name, want)
	}
	var name string
	if json.Unmarshal(topology, &name) == nil {
		var err error
		if s.Topology, err = l.topologyOf(filepath.Dir(s.File), name); err != nil {
			return wrong("/topology", "%w", err)
		}
		return s.check()
	}
	s.Topology = &Topology{Name: s.Name}
	if err := json.Unmarshal(topology, s.Topology); err != nil {
		return wrong("/topology", "%w", err)
	}
	var m *mistake
	if err := s.Topology.Complete(); errors.As(err, &m) {
		return wrong("/topology"+m.at, "%w", m.err)
	} else if err != nil {
		return wrong("/topology", "%w", err)
	}
	return s.check()
}

// topologyOf finds a topology in the scenarios' directory, in the one above, or among the shipped ones. Scenarios that
// name the same file share it.
func (l *Loader) topologyOf(dir, name string) (*Topology, error) {
	file := "topologies/" + name + ".yaml"
	for _, place := range []string{dir, filepath.Dir(filepath.Clean(dir)), ""} {
		from := l.shipped
		if place != "" {
			from = os.DirFS(place)
		}
		if _, err := fs.Stat(from, file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		key := filepath.Join(place, file)
		if t := l.topologies[key]; t != nil {
			return t, nil
		}
		t := &Topology{Name: name}
		raw, err := read(from, file, l.topology, t)
		if err == nil {
			err = t.Complete()
		}
		if err != nil {
			return nil, inFile(key, raw, err)
		}
		l.topologies[key] = t
		return t, nil
	}
	return nil, fmt.Errorf("there is no topology %q: no file %s in %s", name, file, dir)
}

// read reads a YAML file, holds it against its schema, and decodes it. It returns the text, too.
func read(from fs.FS, file string, schema *jsonschema.Schema, into any) ([]byte, error) {
	raw, err := fs.ReadFile(from, file)
	if err != nil {
		return nil, err
	}
	// A decoder that refuses keys that are there twice, and another that lets keys override what "<<" merged.
	var twice any
	if err := yaml3.Unmarshal(raw, &twice); err != nil {
		return raw, err
	}
	asJSON, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return raw, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return raw, err
	}
	if err := schema.Validate(doc); err != nil {
		var invalid *jsonschema.ValidationError
		if errors.As(err, &invalid) {
			return raw, errors.Join(explain(invalid)...)
		}
		return raw, err
	}
	return raw, json.Unmarshal(asJSON, into)
}

// explain lists the innermost reasons with their paths; of a key that is not known, the path is the key's.
func explain(e *jsonschema.ValidationError) []error {
	if len(e.Causes) > 0 {
		var all []error
		for _, cause := range e.Causes {
			all = append(all, explain(cause)...)
		}
		return all
	}
	at := "/" + strings.Join(e.InstanceLocation, "/")
	if unknown, ok := e.ErrorKind.(*kind.AdditionalProperties); ok {
		var all []error
		for _, name := range unknown.Properties {
			all = append(all, wrong(strings.TrimSuffix(at, "/")+"/"+name, "there is no such key"))
		}
		return all
	}
	text := e.Error()
	if _, rest, ok := strings.Cut(text, "\n"); ok {
		text = rest
	}
	return []error{wrong(at, "%s", strings.TrimPrefix(strings.TrimSpace(text), "- "))}
}

// usual are a workload's ports if it says none.
func usual() []Port {
	return []Port{
		{Name: "http", Port: 80, TargetPort: 8080, App: AppHTTP},
		{Name: "http2", Port: 85, TargetPort: 8085, App: AppHTTP2},
		{Name: "grpc", Port: 7070, App: AppGRPC},
		{Name: "tcp", Port: 9090, App: AppTCP},
		{Name: "tcp-first", Port: 9091, App: AppServerFirst},
		{Name: "https", Port: 443, TargetPort: 8443, App: AppHTTPS},
		{Name: "auto-http", Port: 81, TargetPort: 8081, App: AppHTTP},
		{Name: "auto-tcp", Port: 9092, App: AppTCP},
	}
}

// Complete fills in defaults and checks what the schema cannot say; Load does it for topologies in files.
func (t *Topology) Complete() error {
	names := map[string]bool{}
	if t.Namespaces == nil {
		t.Namespaces = map[string]map[string]string{}
	}
	if _, ok := t.Namespaces[RootNamespace]; !ok {
		t.Namespaces[RootNamespace] = nil
	}
	for i := range t.Workloads {
		w := &t.Workloads[i]
		at := fmt.Sprintf("/workloads/%d", i)
		if names[w.Name] {
			return wrong(at+"/name", "two workloads are named %q", w.Name)
		}
		names[w.Name] = true
		if w.Name == Outside {
			return wrong(at+"/name", "%q is the machine outside the mesh; choose another name", w.Name)
		}
		if _, ok := t.Namespaces[w.Namespace]; !ok {
			return wrong(at+"/namespace", "%q is not in /namespaces", w.Namespace)
		}
		w.complete()
	}
	for name, workloads := range t.DNS {
		for _, w := range workloads {
			if !names[w] {
				return wrong("/dns/"+name, "there is no workload %q; there are %v", w, slices.Sorted(maps.Keys(names)))
			}
		}
	}
	return nil
}

// Outside is the machine outside the mesh.
const Outside = "outside"

func (w *Workload) complete() {
	setDefault(&w.Service, w.Name)
	setDefault(&w.ServiceAccount, w.Name)
	setDefault(&w.Kind, Sidecar)
	setDefault(&w.Capture, Redirect)
	labels := map[string]string{"app": w.Name}
	if w.Service != NoService {
		labels["app"] = w.Service
	}
	maps.Copy(labels, w.Labels)
	w.Labels = labels
	if w.Ports == nil {
		w.Ports = usual()
	}
	for i := range w.Ports {
		p := &w.Ports[i]
		if p.TargetPort == 0 {
			p.TargetPort = p.Port
		}
		setDefault(&p.App, appOf(p.Name))
		setDefault(&p.Bind, "all")
	}
}

// appOf is the application of a port that says none, by the protocol its name has.
func appOf(port string) string {
	protocol, _, _ := strings.Cut(port, "-")
	switch protocol {
	case "http2":
		return AppHTTP2
	case "grpc":
		return AppGRPC
	case "https":
		return AppHTTPS
	case "tls":
		return AppTLS
	case "tcp":
		return AppTCP
	}
	return AppHTTP
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

var reference = regexp.MustCompile(`^[A-Za-z]+[a-z0-9.]*/[^/]*/[^/]+$`)

// check reports references to what the scenario does not have.
func (s *Scenario) check() error {
	for name, c := range s.Certificates {
		if c.Issuer == "" {
			continue
		}
		if _, ok := s.Certificates[c.Issuer]; !ok {
			return wrong("/certificates/"+name+"/issuer", "there is no certificate %q", c.Issuer)
		}
	}
	for name, t := range s.Tokens {
		setDefault(&t.Key, DefaultKey)
		setDefault(&t.Alg, RS256)
		if t.Expired && t.Future {
			return wrong("/tokens/"+name, "is both expired and future; choose one")
		}
		s.Tokens[name] = t
	}
	begun := map[string]bool{}
	return s.checkSteps("/steps", s.Steps, begun)
}

func (s *Scenario) checkSteps(at string, steps []Step, begun map[string]bool) error {
	for i := range steps {
		step := &steps[i]
		here := fmt.Sprintf("%s/%d", at, i)
		var err error
		switch {
		case step.Call != nil:
			err = s.checkCall(here+"/call", step.Call)
		case step.Background != nil:
			begun[step.Background.Name] = true
			err = s.checkCall(here+"/background/call", &step.Background.Call)
		case step.End != "" && !begun[step.End]:
			err = wrong(here+"/end", "nothing named %q runs in the background before", step.End)
		case step.Reject != nil:
			if _, bad := regexp.Compile(step.Reject.Message); bad != nil {
				err = wrong(here+"/reject/message", "%w", bad)
			}
		case step.Eventually != nil:
			err = s.checkSteps(here+"/eventually/steps", step.Eventually.Steps, begun)
		case step.Config != nil:
			err = s.checkWorkload(here+"/config/of", step.Config.Of)
		case step.Add != "":
			err = s.checkWorkload(here+"/add", step.Add)
		case step.Remove != "":
			err = s.checkWorkload(here+"/remove", step.Remove)
		}
		for _, ref := range step.Delete {
			if !reference.MatchString(ref) {
				err = wrong(here+"/delete", "%q is not Kind/namespace/name", ref)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DefaultCaller makes the calls that name no caller.
const DefaultCaller = "client"

func (s *Scenario) checkCall(at string, c *Call) error {
	setDefault(&c.From, DefaultCaller)
	if c.Count == 0 {
		c.Count = 1
	}
	if c.Timeout == 0 {
		c.Timeout = Duration(defaultTimeout)
	}
	if c.From != Outside {
		if err := s.checkWorkload(at+"/from", c.From); err != nil {
			return err
		}
	}
	if c.Via != "" {
		if err := s.checkWorkload(at+"/via", c.Via); err != nil {
			return err
		}
	}
	if t := c.TLS; t != nil {
		for _, name := range []string{t.CA, t.Cert} {
			if _, ok := s.Certificates[name]; name != "" && !ok {
				return wrong(at+"/tls", "there is no certificate %q", name)
			}
		}
	}
	var told []string
	for _, m := range c.Expect.Metrics {
		told = append(told, m.At)
	}
	for _, l := range c.Expect.AccessLog {
		told = append(told, l.At)
	}
	for _, l := range c.Expect.Spans {
		told = append(told, l.At)
	}
	for _, name := range told {
		if err := s.checkWorkload(at+"/expect", name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scenario) checkWorkload(at, name string) error {
	for i := range s.Topology.Workloads {
		if s.Topology.Workloads[i].Name == name {
			return nil
		}
	}
	return wrong(at, "topology %s has no workload %q", s.Topology.Name, name)
}
