package running

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// decode makes objects of YAML documents and leaves out kinds that the mesh does not read.
func decode(t testing.TB, file, text string) []*object.Object {
	t.Helper()
	docs, problems := manifest.Parse(file, []byte(text))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var out []*object.Object
	for _, doc := range docs {
		o, err := validate.Document(doc)
		if errors.Is(err, validate.ErrIgnored) {
			continue
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
		out = append(out, o)
	}
	return out
}

// fixture is a normalised mesh and its findings.
type fixture struct {
	t          testing.TB
	normalised *normalise.Mesh
	// seen are the objects that the mesh has received.
	seen  map[object.Key]*object.Object
	clock time.Time
	*Mesh
}

func newFixture(t testing.TB, texts ...string) *fixture {
	t.Helper()
	f := &fixture{t, normalise.New(normalise.Config{}), map[object.Key]*object.Object{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), New("")}
	f.apply(texts...)
	return f
}

// take passes changes on as the pipeline does: credentials are not part of the normalised mesh.
func (f *fixture) take(changes ...normalise.Change) {
	f.t.Helper()
	var rest []normalise.Change
	for _, c := range changes {
		if c.Key.Kind == "Secret" || c.Key.Kind == "ConfigMap" && !kinds.IsMeshConfig(c.Key) {
			f.pass(c)
		} else {
			rest = append(rest, c)
		}
	}
	d := f.normalised.Apply(rest)
	if len(d.Errors) > 0 {
		f.t.Fatal(d.Errors)
	}
	f.Configure(f.normalised.Settings())
	f.pass(d.Discovered...)
	f.Analyze(0)
}

func (f *fixture) pass(changes ...normalise.Change) {
	f.Apply(changes)
	for _, c := range changes {
		if c.Object == nil {
			delete(f.seen, c.Key)
		} else {
			f.seen[c.Key] = c.Object
		}
	}
}

// present lists the objects that the mesh has received and not removed.
func (f *fixture) present() []normalise.Change {
	var out []normalise.Change
	for k, o := range f.seen {
		out = append(out, normalise.Change{Key: k, Object: o})
	}
	return out
}

func (f *fixture) apply(texts ...string) {
	f.t.Helper()
	var changes []normalise.Change
	for _, text := range texts {
		for _, o := range decode(f.t, "mesh.yaml", text) {
			if o.Created.IsZero() {
				// As in the store: an object keeps its creation time, and a later object is younger.
				f.clock = f.clock.Add(time.Second)
				o.Created = f.clock
				if old := f.seen[o.Key]; old != nil {
					o.Created = old.Created
				}
			}
			changes = append(changes, normalise.Change{Key: o.Key, Object: o})
		}
	}
	f.take(changes...)
}

// normaliseChange is short for a change.
type normaliseChange = normalise.Change

// key is the key of an object that Key.String would name so.
func (f *fixture) key(name string) object.Key {
	kind, rest, _ := strings.Cut(name, " ")
	k := object.Key{Kind: kind}
	k.Group, _, _ = kinds.ByName(kind)
	if ns, name, found := strings.Cut(rest, "/"); found {
		k.Namespace, k.Name = ns, name
	} else {
		k.Name = rest
	}
	return k
}

// remove deletes objects.
func (f *fixture) remove(names ...string) {
	f.t.Helper()
	var changes []normalise.Change
	for _, name := range names {
		changes = append(changes, normalise.Change{Key: f.key(name)})
	}
	f.take(changes...)
}

// short lists the findings as "<code> <object> <field>".
func (f *fixture) short() []string {
	out := []string{}
	for _, one := range f.All() {
		out = append(out, strings.TrimSpace(string(one.Code)+" "+one.Key.String()+" "+one.Field))
	}
	return out
}

func (f *fixture) want(want ...string) {
	f.t.Helper()
	slices.Sort(want)
	got := f.short()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("found\n  %s\nwant\n  %s", strings.Join(texts(f.All()), "\n  "), strings.Join(want, "\n  "))
	}
}

func texts(list []finding.Finding) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.Error())
	}
	return out
}
