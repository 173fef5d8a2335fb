package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/keys"
)

// record is a fleet and a caller that note what they are asked, and fail where a test says.
type record struct {
	did     []string
	refused error
	// failing are calls, by URL, and how often each fails still.
	failing  map[string]int
	problems []string
}

func (r *record) note(what ...any) error {
	r.did = append(r.did, strings.TrimSpace(fmt.Sprintln(what...)))
	return nil
}

func (r *record) Apply(_ context.Context, yaml string, wait bool) error {
	if yaml == "bad" {
		return r.refused
	}
	return r.note("apply", yaml, wait)
}

func (r *record) Delete(_ context.Context, refs []string, _ bool) error {
	return r.note("delete", refs)
}
func (r *record) Stop(_ context.Context, t string) error    { return r.note("stop", t) }
func (r *record) Start(_ context.Context, t string) error   { return r.note("start", t) }
func (r *record) Kill(_ context.Context, t string) error    { return r.note("kill", t) }
func (r *record) Restart(_ context.Context, t string) error { return r.note("restart", t) }
func (r *record) Add(_ context.Context, w string) error     { return r.note("add", w) }
func (r *record) Remove(_ context.Context, w string) error  { return r.note("remove", w) }
func (r *record) Files(_ context.Context, w string, _ map[string]*format.FileText) error {
	return r.note("files", w)
}
func (r *record) Begin(context.Context) error { return r.note("begin") }

func (r *record) Held(context.Context, string) (Held, error) {
	return Held{Clusters: []string{"outbound|80||server"}}, nil
}

func (r *record) End(context.Context, func(string) bool) []string {
	_ = r.note("end")
	return r.problems
}

func (r *record) Values(map[string]*format.Material) *format.Values {
	return &format.Values{IP: func(string) (string, error) { return "198.18.0.9", nil }}
}

func (r *record) Keys(tokens map[string]format.Token) (Keys, error) {
	return &recordKeys{Ring: keys.New(tokens, keys.Place{}), record: r}, nil
}

// recordKeys are real keys; what is done to them is noted.
type recordKeys struct {
	*keys.Ring
	record *record
}

func (k *recordKeys) Change(name, to string) error {
	_ = k.record.note("keys", name, to)
	return k.Ring.Change(name, to)
}

func (r *record) Evidence(context.Context, string) []string { return []string{"evidence"} }

func (r *record) Call(_ context.Context, c *format.Call, _ map[string]*format.Material) error {
	if r.failing[c.URL] > 0 {
		r.failing[c.URL]--
		return errors.New("unmet")
	}
	return r.note("call", c.URL)
}

func (r *record) Background(ctx context.Context, c *format.Call, certificates map[string]*format.Material) (func() error, error) {
	return func() error { return r.Call(ctx, c, certificates) }, nil
}

func call(url string) format.Step { return format.Step{Call: &format.Call{URL: url}} }

func TestRun(t *testing.T) {
	two, none := 2, 0
	background := format.Step{Background: &format.Background{Name: "b", Call: format.Call{URL: "b"}}}
	tests := []struct {
		name   string
		steps  []format.Step
		record record
		// did ends what was done; want is in the error, empty for none.
		did, want string
	}{
		{"variables and order", []format.Step{{Apply: "a"}, call("http://${ip:x}/"), {Kill: "ca"}}, record{},
			"apply a true, call http://198.18.0.9/, kill ca, end", ""},
		{"no step after a failed one", []format.Step{call("x"), {Stop: "ca"}}, record{failing: map[string]int{"x": 1}}, "begin, end",
			"step 1 (call x from ): unmet\nevidence"},
		{"eventually", []format.Step{{Eventually: &format.Eventually{Within: format.Duration(time.Minute), Steps: []format.Step{call("x")}}}},
			record{failing: map[string]int{"x": 3}}, "call x, end", ""},
		{"not within", []format.Step{{Eventually: &format.Eventually{Steps: []format.Step{call("x")}}}}, record{failing: map[string]int{"x": 3}},
			"begin, end", "not within 0s: step 1.1"},
		{"refused", []format.Step{{Reject: &format.Reject{YAML: "bad", Message: "weight"}}},
			record{refused: fmt.Errorf("%w: a weight", ErrRefused)}, "begin, end", ""},
		{"refused for another reason", []format.Step{{Reject: &format.Reject{YAML: "bad", Message: "weight"}}},
			record{refused: fmt.Errorf("%w: a host", ErrRefused)}, "", "another message"},
		{"refused in Kubernetes' words", []format.Step{{Reject: &format.Reject{YAML: "bad", Message: "weight"}}},
			record{refused: fmt.Errorf("%w: %w: a host", ErrRefused, ErrKubernetes)}, "", "another message"},
		{"failed, not refused", []format.Step{{Reject: &format.Reject{YAML: "bad", Message: ""}}}, record{refused: errors.New("away")}, "",
			"failed otherwise"},
		{"accepted", []format.Step{{Reject: &format.Reject{YAML: "good"}}}, record{}, "", "it was accepted"},
		{"background", []format.Step{background, {Stop: "ca"}, {End: "b"}}, record{}, "begin, stop ca, call b, end", ""},
		{"background fails", []format.Step{background, {End: "b"}}, record{failing: map[string]int{"b": 1}}, "", "step 2 (end b): unmet"},
		{"background that nobody ends", []format.Step{background}, record{failing: map[string]int{"b": 1}}, "", "which no step ended: unmet"},
		{"unasked", []format.Step{{Wait: 1}}, record{problems: []string{"a NACK"}}, "", "unasked: a NACK"},
		{"config", []format.Step{{Config: &format.Config{Clusters: &format.Holdings{Has: []string{"^outbound"}, HasNot: []string{"^inbound"}}}}},
			record{}, "begin, end", ""},
		{"config lacks", []format.Step{{Config: &format.Config{Clusters: &format.Holdings{Has: []string{"^inbound"}}}}}, record{}, "",
			`none is like "^inbound"`},
		{"config has", []format.Step{{Config: &format.Config{Clusters: &format.Holdings{HasNot: []string{"server"}}}}}, record{}, "",
			"which none may be"},
		{"a key and a token", []format.Step{{Keys: map[string]string{"default": "rotate", "b": "up"}}, call("${jwt:t.before}"), {Stop: "ca"}},
			record{}, "stop ca, end", ""},
		{"keys in order", []format.Step{{Keys: map[string]string{"default": "rotate", "b": "up"}}}, record{},
			"begin, keys b up, keys default rotate, end", ""},
		{"a token of no key before", []format.Step{call("${jwt:t.before}")}, record{}, "begin, end", "key default has not been rotated"},
		{"a token when its step comes", []format.Step{{Eventually: &format.Eventually{Within: 1, Steps: []format.Step{
			{Keys: map[string]string{"default": "rotate"}}, call("${jwt:t.before}")}}}}, record{}, "end", ""},
		{"config too few", []format.Step{{Config: &format.Config{Clusters: &format.Holdings{Min: &two}}}}, record{}, "", "at least 2"},
		{"config too many", []format.Step{{Config: &format.Config{Clusters: &format.Holdings{Max: &none}}}}, record{}, "", "at most 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &Runner{Fleet: &tt.record, Caller: &tt.record}
			err := r.Run(t.Context(), &format.Scenario{Name: "x", Steps: tt.steps, Tokens: map[string]format.Token{
				"t": {Issuer: "i", Key: format.DefaultKey, Alg: format.ES256}}}, nil)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if did := strings.Join(tt.record.did, ", "); !strings.HasSuffix(did, tt.did) {
				t.Errorf("did %s, want %s", did, tt.did)
			}
			if last := tt.record.did[len(tt.record.did)-1]; last != "end" {
				t.Errorf("the fleet was left as it is after %s", last)
			}
		})
	}
}

// TestOtherWords: Kubernetes may refuse as many objects in its own words as the scenario is listed with, no more and no
// fewer.
func TestOtherWords(t *testing.T) {
	reject := format.Step{Reject: &format.Reject{YAML: "bad", Message: "weight"}}
	ours, other := fmt.Errorf("%w: a host", ErrRefused), fmt.Errorf("%w: %w: a host", ErrRefused, ErrKubernetes)
	same := fmt.Errorf("%w: %w: a weight", ErrRefused, ErrKubernetes)
	for name, tc := range map[string]struct {
		refused error
		listed  int
		want    string
	}{
		"as many":            {other, 2, ""},
		"more":               {other, 1, "another message"},
		"fewer":              {other, 3, "refused 2 objects in its own words, and the list of such scenarios says 3"},
		"ours":               {ours, 2, "another message"},
		"the scenario's own": {same, 2, "refused 0 objects in its own words"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &record{refused: tc.refused}
			err := (&Runner{Fleet: f, Caller: f, OtherWords: tc.listed}).Run(t.Context(),
				&format.Scenario{Name: "x", Steps: []format.Step{reject, reject}}, nil)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
