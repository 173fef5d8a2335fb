package aggregate

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// fake is a source that the test sends events from.
type fake struct {
	name   string
	handle source.Handler
}

func (f *fake) Name() string              { return f.name }
func (f *fake) Handle(h source.Handler)   { f.handle = h }
func (f *fake) Run(context.Context) error { return nil }
func (f *fake) HasSynced() bool           { return true }
func (f *fake) Status() source.Status     { return source.Status{Synced: true} }

func (f *fake) put(names ...string) {
	var events []source.Event
	for _, n := range names {
		k := object.Key{Kind: "Namespace", Name: strings.TrimPrefix(n, "-")}
		e := source.Event{Key: k}
		if !strings.HasPrefix(n, "-") {
			e.Object = &object.Object{Key: k, Source: f.name}
		}
		events = append(events, e)
	}
	f.handle(context.Background(), f.name, events)
}

func TestFirstSourceIsInForce(t *testing.T) {
	first, second := &fake{name: "first"}, &fake{name: "second"}
	var log []string
	a := New(testkit.Logger(t), func(_ context.Context, changes []normalise.Change) {
		var batch []string
		for _, c := range changes {
			from := "gone"
			if c.Object != nil {
				from = c.Object.Source
			}
			batch = append(batch, c.Key.Name+":"+from)
		}
		log = append(log, strings.Join(batch, ","))
	}, "", first, second)
	expect := func(step, want string) {
		t.Helper()
		if got := strings.Join(log, " "); got != want {
			t.Errorf("%s: %q, want %q", step, got, want)
		}
		log = nil
	}
	second.put("x", "y")
	expect("alone", "x:second,y:second")
	first.put("x")
	expect("the first source comes later and counts", "x:first")
	for range 3 {
		second.put("x")
	}
	expect("the shadowed one changes without effect", "")
	if c := a.Conflicts(); fmt.Sprint(c) != "[{Namespace x first [second]}]" {
		t.Errorf("conflicts %v", c)
	}
	first.put("-x")
	expect("the shadowed one comes back", "x:second")
	second.put("-x", "-x")
	expect("gone", "x:gone")
	if c := a.Conflicts(); len(c) != 0 {
		t.Errorf("conflicts %v", c)
	}
	if a.Get(object.Key{Kind: "Namespace", Name: "y"}).Source != "second" || a.Get(object.Key{Kind: "Namespace", Name: "x"}) != nil {
		t.Error("Get disagrees")
	}
}

// TestWarningsOfAnObjectAreBounded: one object can have a warning for each of thousands of fields.
func TestWarningsOfAnObjectAreBounded(t *testing.T) {
	var lines bytes.Buffer
	s := &fake{name: "source"}
	New(slog.New(slog.NewTextHandler(&lines, nil)), func(context.Context, []normalise.Change) {}, "", s)
	k := object.Key{Kind: "VirtualService", Namespace: "shop", Name: "large"}
	large := &object.Object{Key: k, Source: s.name}
	for i := range 20_000 {
		large.Warnings = append(large.Warnings, object.Problem{Object: k.String(), Field: fmt.Sprint("spec.http[", i, "]"), Reason: "unread"})
	}
	s.handle(context.Background(), s.name, []source.Event{{Key: k, Object: large}})
	if n := strings.Count(lines.String(), "\n"); n != maxLogged+1 || !strings.Contains(lines.String(), "count=19990") {
		t.Errorf("%d lines, the last is %s", n, lines.String()[max(lines.Len()-300, 0):])
	}
}
