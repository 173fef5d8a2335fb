// Package runner runs scenarios on a fleet: step by step, with what must hold unasked.
package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/format"
)

// Fleet is a running topology.
type Fleet interface {
	// Apply creates or replaces objects; with wait it goes on when every connected proxy has acknowledged them.
	// ErrRefused tells a refusal.
	Apply(ctx context.Context, yaml string, wait bool) error
	Delete(ctx context.Context, refs []string, wait bool) error
	Stop(ctx context.Context, target string) error
	Start(ctx context.Context, target string) error
	Kill(ctx context.Context, target string) error
	Restart(ctx context.Context, target string) error
	Add(ctx context.Context, workload string) error
	Remove(ctx context.Context, workload string) error
	// Files replaces files of a workload's proxy, or takes away those that are nil.
	Files(ctx context.Context, workload string, files map[string]*format.FileText) error
	// Held lists the names of what a proxy holds.
	Held(ctx context.Context, workload string) (Held, error)

	// Begin remembers how things are; End restores it, and reports what could not be, and what did not hold meanwhile:
	// rejected updates, warming resources, errors in logs, processes that ended unasked.
	Begin(ctx context.Context) error
	End(ctx context.Context, allow func(what string) bool) []string

	// Values of the scenario's variables; certificates are the scenario's own.
	Values(certificates map[string]*format.Material) *format.Values
	// Keys makes the keys of a scenario, which sign its tokens.
	Keys(tokens map[string]format.Token) (Keys, error)
	// Evidence says, for a failed step, what else is known: the proxies' last rejections and where logs and
	// configuration dumps are.
	Evidence(ctx context.Context, scenario string) []string
}

// Keys are those of a scenario, which steps change.
type Keys interface {
	format.Keys
	// Change does to a key what a step says.
	Change(key, to string) error
	Close()
}

// Held is what a proxy holds, by name.
type Held struct {
	Clusters, Listeners, Routes, VirtualHosts, Endpoints []string
	// Asked is true for a proxy that has clusters, virtual hosts and endpoints only once it has called what they are
	// for.
	Asked bool
}

// Caller makes calls.
type Caller interface {
	// Call makes a call and compares what came of it with what is expected.
	Call(ctx context.Context, c *format.Call, certificates map[string]*format.Material) error
	// Background makes a call over and over; what it returns ends that and compares.
	Background(ctx context.Context, c *format.Call, certificates map[string]*format.Material) (end func() error, err error)
}

// ErrRefused is what Fleet.Apply's error is if validation refused an object.
var ErrRefused = errors.New("refused")

// ErrKubernetes is what Fleet.Apply's error also is if Kubernetes has refused the object, by its schema or its own
// validation: the words are not ours.
var ErrKubernetes = errors.New("refused by Kubernetes")

// Runner runs scenarios one after the other.
type Runner struct {
	Fleet  Fleet
	Caller Caller
	// Log says what is done; it may be nil.
	Log func(format string, args ...any)
	// OtherWords is how many objects Kubernetes refuses in words that are not those of the scenario. Run fails if there
	// are more of them, or fewer.
	OtherWords int

	// other counts them.
	other int
}

// run is one scenario that runs.
type run struct {
	*Runner
	certificates map[string]*format.Material
	// values are those of variables that steps change.
	values     *format.Values
	keys       Keys
	background map[string]func() error
}

// again is how long steps that must come true rest between attempts.
const again = 30 * time.Millisecond

// Run runs a scenario with its certificates, and leaves the fleet as it was. Its error says everything that did not
// hold.
func (r *Runner) Run(ctx context.Context, s *format.Scenario, certificates map[string]*format.Material) error {
	values := r.Fleet.Values(certificates)
	s, err := values.Expand(s)
	if err != nil {
		return err
	}
	keys, err := r.Fleet.Keys(s.Tokens)
	if err != nil {
		return err
	}
	defer keys.Close()
	values.Keys = keys
	if err := r.Fleet.Begin(ctx); err != nil {
		return fmt.Errorf("before the scenario: %w", err)
	}
	this := &run{Runner: r, certificates: certificates, values: values, keys: keys, background: map[string]func() error{}}
	wrong := this.steps(ctx, "step ", s.Steps)
	for name, end := range this.background {
		if err := end(); err != nil && wrong == nil {
			wrong = fmt.Errorf("background call %s, which no step ended: %w", name, err)
		}
	}
	if wrong == nil && r.OtherWords != r.other {
		wrong = fmt.Errorf("Kubernetes has refused %d objects in its own words, and the list of such scenarios says %d", r.other, r.OtherWords)
	}
	var all []error
	if wrong != nil {
		all = append(all, wrong)
		for _, line := range r.Fleet.Evidence(ctx, s.Name) {
			all = append(all, errors.New(line))
		}
	}
	for _, problem := range r.Fleet.End(ctx, s.Allows) {
		all = append(all, errors.New("unasked: "+problem))
	}
	return errors.Join(all...)
}

func (r *run) steps(ctx context.Context, prefix string, steps []format.Step) error {
	for i := range steps {
		begin := time.Now()
		name := fmt.Sprintf("%s%d (%s)", prefix, i+1, title(&steps[i]))
		err := r.step(ctx, fmt.Sprintf("%s%d.", prefix, i+1), &steps[i])
		if r.Log != nil {
			word := "ok"
			if err != nil {
				word = "FAILED"
			}
			r.Log("%s: %s in %s", name, word, time.Since(begin).Round(time.Millisecond))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (r *run) step(ctx context.Context, prefix string, s *format.Step) error {
	f := r.Fleet
	if s.Eventually == nil { // whose steps have their own time
		var err error
		if s, err = r.values.Now(s); err != nil {
			return err
		}
	}
	switch {
	case s.Apply != "":
		return f.Apply(ctx, s.Apply, true)
	case s.ApplyNoWait != "":
		return f.Apply(ctx, s.ApplyNoWait, false)
	case s.Reject != nil:
		return r.reject(ctx, s.Reject)
	case s.Delete != nil:
		return f.Delete(ctx, s.Delete, true)
	case s.Call != nil:
		return r.Caller.Call(ctx, s.Call, r.certificates)
	case s.Background != nil:
		end, err := r.Caller.Background(ctx, &s.Background.Call, r.certificates)
		if err == nil {
			r.background[s.Background.Name] = end
		}
		return err
	case s.End != "":
		end := r.background[s.End]
		if end == nil {
			return fmt.Errorf("nothing named %q runs in the background", s.End)
		}
		delete(r.background, s.End)
		return end()
	case s.Stop != "":
		return f.Stop(ctx, s.Stop)
	case s.StartTarget != "":
		return f.Start(ctx, s.StartTarget)
	case s.Kill != "":
		return f.Kill(ctx, s.Kill)
	case s.Restart != "":
		return f.Restart(ctx, s.Restart)
	case s.Add != "":
		return f.Add(ctx, s.Add)
	case s.Remove != "":
		return f.Remove(ctx, s.Remove)
	case s.Files != nil:
		for workload, files := range s.Files {
			if err := f.Files(ctx, workload, files); err != nil {
				return err
			}
		}
		return nil
	case s.Keys != nil:
		for _, name := range slices.Sorted(maps.Keys(s.Keys)) {
			if err := r.keys.Change(name, s.Keys[name]); err != nil {
				return fmt.Errorf("key %s: %w", name, err)
			}
		}
		return nil
	case s.Wait != 0:
		return wait.Pause(ctx, s.Wait.D())
	case s.Eventually != nil:
		return r.eventually(ctx, prefix, s.Eventually)
	case s.Config != nil:
		held, err := f.Held(ctx, s.Config.Of)
		if err != nil {
			return err
		}
		return holds(s.Config, &held)
	}
	return errors.New("the step says nothing")
}

// reject applies what must be refused. Nothing may change: the fleet's End finds what did, for it takes back only what
// was accepted.
func (r *run) reject(ctx context.Context, want *format.Reject) error {
	err := r.Fleet.Apply(ctx, want.YAML, false)
	switch {
	case err == nil:
		return fmt.Errorf("it was accepted, and should have been refused with a message like %q", want.Message)
	case !errors.Is(err, ErrRefused):
		return fmt.Errorf("it should have been refused, and failed otherwise: %w", err)
	}
	ok, bad := regexp.MatchString(want.Message, err.Error())
	if bad != nil {
		return bad
	}
	if !ok && r.other < r.OtherWords && errors.Is(err, ErrKubernetes) {
		r.other++
		return nil
	}
	if !ok {
		return fmt.Errorf("refused with another message than one like %q: %w", want.Message, err)
	}
	return nil
}

// eventually repeats steps until all come true in one go. The last failure is the one that is told.
func (r *run) eventually(ctx context.Context, prefix string, e *format.Eventually) error {
	quiet := &run{Runner: &Runner{Fleet: r.Fleet, Caller: r.Caller}, certificates: r.certificates, values: r.values, keys: r.keys,
		background: r.background}
	begin := time.Now()
	for {
		err := quiet.steps(ctx, prefix, e.Steps)
		if err == nil {
			return nil
		}
		if time.Since(begin) >= e.Within.D() {
			return fmt.Errorf("not within %s: %w", e.Within.D(), err)
		}
		if err := wait.Pause(ctx, again); err != nil {
			return err
		}
	}
}

// holds compares what a proxy holds with what it must.
func holds(want *format.Config, got *Held) error {
	var wrong []error
	for _, list := range []struct {
		name  string
		want  *format.Holdings
		got   []string
		asked bool
	}{
		{"clusters", want.Clusters, got.Clusters, got.Asked},
		{"listeners", want.Listeners, got.Listeners, false},
		{"routes", want.Routes, got.Routes, false},
		{"virtualHosts", want.VirtualHosts, got.VirtualHosts, got.Asked},
		{"endpoints", want.Endpoints, got.Endpoints, got.Asked},
	} {
		if list.want != nil {
			if list.asked { // what may not be there is not there either; what must be, is not there yet
				list.want = &format.Holdings{Max: list.want.Max, HasNot: list.want.HasNot}
			}
			if err := holdsList(list.want, list.got); err != nil {
				wrong = append(wrong, fmt.Errorf("%s of %s: %w; it holds %d: %s", list.name, want.Of, err, len(list.got), strings.Join(list.got, " ")))
			}
		}
	}
	return errors.Join(wrong...)
}

func holdsList(want *format.Holdings, got []string) error {
	if want.Min != nil && len(got) < *want.Min {
		return fmt.Errorf("want at least %d", *want.Min)
	}
	if want.Max != nil && len(got) > *want.Max {
		return fmt.Errorf("want at most %d", *want.Max)
	}
	for i, pattern := range append(want.Has[:len(want.Has):len(want.Has)], want.HasNot...) {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return err
		}
		found := ""
		for _, name := range got {
			if re.MatchString(name) {
				found = name
			}
		}
		switch {
		case i < len(want.Has) && found == "":
			return fmt.Errorf("none is like %q", pattern)
		case i >= len(want.Has) && found != "":
			return fmt.Errorf("%q is like %q, which none may be", found, pattern)
		}
	}
	return nil
}

// title says in a word or two what a step does.
func title(s *format.Step) string {
	switch {
	case s.Apply != "":
		return "apply " + objects(s.Apply)
	case s.ApplyNoWait != "":
		return "applyNoWait " + objects(s.ApplyNoWait)
	case s.Reject != nil:
		return "reject " + objects(s.Reject.YAML)
	case s.Delete != nil:
		return "delete " + strings.Join(s.Delete, " ")
	case s.Call != nil:
		return callTitle(s.Call)
	case s.Background != nil:
		return "background " + s.Background.Name + " " + callTitle(&s.Background.Call)
	case s.Eventually != nil:
		return "eventually within " + s.Eventually.Within.D().String()
	case s.Config != nil:
		return "config of " + s.Config.Of
	case s.Files != nil:
		return "files of " + strings.Join(slices.Sorted(maps.Keys(s.Files)), " ")
	case s.Keys != nil:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(s.Keys)) {
			parts = append(parts, name+" "+s.Keys[name])
		}
		return "keys " + strings.Join(parts, ", ")
	case s.Wait != 0:
		return "wait " + s.Wait.D().String()
	}
	for verb, target := range map[string]string{
		"end": s.End, "stop": s.Stop, "start": s.StartTarget, "kill": s.Kill, "restart": s.Restart, "add": s.Add, "remove": s.Remove,
	} {
		if target != "" {
			return verb + " " + target
		}
	}
	return "nothing"
}

func callTitle(c *format.Call) string {
	text := fmt.Sprintf("call %s from %s", c.URL, c.From)
	if c.Via != "" {
		text += " via " + c.Via
	}
	if c.Count > 1 {
		text += fmt.Sprintf(" × %d", c.Count)
	}
	return text
}

var kind = regexp.MustCompile(`(?m)^kind: *(\S+)`)

func objects(yaml string) string {
	var kinds []string
	for _, m := range kind.FindAllStringSubmatch(yaml, -1) {
		kinds = append(kinds, m[1])
	}
	return strings.Join(kinds, " ")
}
