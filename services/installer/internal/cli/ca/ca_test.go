package ca_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// fakeCA is the operations port of a ca: what it answers is set, and what it was told is kept.
type fakeCA struct {
	mu     sync.Mutex
	status caapi.Status
	// code and problem are the answer to commands, if code is not 0.
	code    int
	problem string
	// down has every request fail; cut has commands end without an answer.
	down, cut bool
	commands  []caapi.Command
	address   string
}

func startCA(t *testing.T, status caapi.Status) *fakeCA {
	t.Helper()
	ca := &fakeCA{status: status}
	server := httptest.NewServer(ca)
	t.Cleanup(server.Close)
	ca.address = strings.TrimPrefix(server.URL, "http://")
	return ca
}

func (c *fakeCA) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(code int, text string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
	}
	switch path := r.Method + " " + r.URL.Path; {
	case c.down:
		refuse(http.StatusServiceUnavailable, "not now")
	case r.Header.Get("Authorization") != "Bearer admin":
		refuse(http.StatusForbidden, "not an administrator")
	case path == "GET "+caapi.StatusPath:
		_ = json.NewEncoder(w).Encode(c.status)
	case path == "POST "+caapi.CommandPath && r.Header.Get("Content-Type") == "application/json":
		var command caapi.Command
		if err := json.NewDecoder(r.Body).Decode(&command); err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		c.commands = append(c.commands, command)
		if c.cut {
			panic(http.ErrAbortHandler)
		}
		if c.code != 0 {
			refuse(c.code, c.problem)
			return
		}
		if command.Action == caapi.Rotate || command.Action == caapi.Swap {
			c.status.Step, c.status.Began = "prepare", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			c.status.Signers = append(c.status.Signers, caapi.Signer{ID: 2, Name: "next", Kind: "vault", Role: "next"})
		}
		_ = json.NewEncoder(w).Encode(c.status)
	default:
		refuse(http.StatusNotFound, "no such handler; /debug/ lists them")
	}
}

// set changes the ca.
func (c *fakeCA) set(change func(c *fakeCA)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// told are the commands that the ca got.
func (c *fakeCA) told() []caapi.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.commands)
}

func (c *fakeCA) flags(t *testing.T) []string {
	return []string{"--ca-address", c.address, "--token-file", clitest.TokenFile(t, "admin")}
}

func idle() caapi.Status {
	return caapi.Status{
		Replica: "ca-0", Leader: "ca-0", TrustDomain: testkit.TrustDomain, Epoch: 1, Generation: 4, Step: "idle",
		Signers: []caapi.Signer{{ID: 1, Name: "disk", Kind: "intermediate", Role: "current"}},
		Roots:   []caapi.Root{{Subject: "O=one", SHA256: "0a", PEM: "one\n"}, {Subject: "O=two", SHA256: "0b", PEM: "two\n"}},
	}
}

func gate() caapi.Status {
	s := idle()
	s.Step, s.Began = "gate", time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)
	s.Signers = append(s.Signers, caapi.Signer{ID: 2, Name: "next", Kind: "vault", Role: "next"})
	s.Lagging = caapi.Lagging{Total: 2, First: []caapi.Holder{{Name: "shop/web-0"}, {Name: "shop/api-0"}}}
	return s
}

const signer = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: vault\n"

func TestOutputs(t *testing.T) {
	flags := startCA(t, gate()).flags(t)
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"status": {[]string{"status"}, []string{"trust domain:  " + testkit.TrustDomain,
			"2 holders that do not trust", "\nshop/web-0 ", "\n2        next   next      vault  "}},
		"status, table": {[]string{"status", "-o", "table"}, []string{"trust domain:  "}},
		"status, json":  {[]string{"status", "-o", "json"}, []string{`"step": "gate"`, `"name": "shop/api-0"`}},
		"status, yaml":  {[]string{"status", "-o", "yaml"}, []string{"step: gate\n", "name: shop/web-0\n"}},
		"roots":         {[]string{"roots"}, []string{"SHA256", "0a       -      O=one\n0b       -      O=two\n"}},
		"roots, pem":    {[]string{"roots", "-o", "pem"}, []string{"one\ntwo\n"}},
		"roots, json":   {[]string{"roots", "-o", "json"}, []string{"[\n", `"sha256": "0a"`}},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := clitest.Run("", append(append([]string{"ca"}, tc.args...), flags...)...)
			if code != process.ExitOK {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "signer.yaml")
	testkit.WriteFile(t, file, []byte(signer))
	for name, tc := range map[string]struct {
		status caapi.Status
		stdin  string
		args   []string
		want   []caapi.Command
		says   string
	}{
		"rotate, asked": {idle(), "y\n", []string{"rotate", "--reason", "yearly"}, []caapi.Command{{Action: caapi.Rotate, Reason: "yearly"}},
			"Proceed? [y/N] the rotation has begun (step prepare)"},
		"rotate, not asked": {idle(), "", []string{"rotate", "-y", "--compromised"},
			[]caapi.Command{{Action: caapi.Rotate, Compromised: true}}, "has begun"},
		"swap": {idle(), "", []string{"swap", "--to", file, "--yes"}, []caapi.Command{{Action: caapi.Swap, File: signer}}, "has begun"},
		"swap, from input": {idle(), signer, []string{"swap", "--to", "-", "--yes"},
			[]caapi.Command{{Action: caapi.Swap, File: signer}}, "has begun"},
		"pause":    {gate(), "", []string{"rotate", "--pause"}, []caapi.Command{{Action: caapi.Pause}}, "stays at step gate"},
		"resume":   {gate(), "", []string{"swap", "--resume"}, []caapi.Command{{Action: caapi.Resume}}, "goes on (step gate)"},
		"abort":    {gate(), "", []string{"rotate", "--abort"}, []caapi.Command{{Action: caapi.Abort}}, "signer disk (intermediate) issues"},
		"rollback": {gate(), "", []string{"rotate", "--rollback"}, []caapi.Command{{Action: caapi.Rollback}}, "the way back is at step gate"},
		"accept": {gate(), "yes\n", []string{"rotate", "--accept", "shop/web-0", "--accept", "shop/api-0"},
			[]caapi.Command{{Action: caapi.Accept, Holder: "shop/web-0"}, {Action: caapi.Accept, Holder: "shop/api-0"}},
			"does not wait for shop/web-0, shop/api-0"},
		"compromised": {gate(), "", []string{"rotate", "--compromised", "--yes"},
			[]caapi.Command{{Action: caapi.Compromised}}, "count as compromised"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := startCA(t, tc.status)
			out, _, err := clitest.Run(tc.stdin, append(append([]string{"ca"}, tc.args...), ca.flags(t)...)...)
			if err != nil || !strings.Contains(out, tc.says) {
				t.Errorf("%v, %s", err, out)
			}
			if got := ca.told(); !slices.Equal(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestWhatIsNotSent(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		testkit.WriteFile(t, filepath.Join(dir, name), []byte(content))
		return filepath.Join(dir, name)
	}
	good := file("good.yaml", signer)
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		code  int
		want  string
	}{
		"the answer is no":  {"n\n", []string{"rotate"}, process.ExitFailure, "nothing was changed"},
		"nobody answers":    {"", []string{"swap", "--to", good}, process.ExitUsage, "--yes answers yes"},
		"input is the file": {signer, []string{"swap", "--to", "-"}, process.ExitUsage, "add --yes"},
		"no file":           {"", []string{"swap", "--to", filepath.Join(dir, "none"), "-y"}, process.ExitUsage, "--to: "},
		"a large file": {"", []string{"swap", "--to", file("large", strings.Repeat("#", 1+64<<10)), "-y"},
			process.ExitUsage, "more than 65536 bytes"},
		"no YAML":              {"", []string{"swap", "--to", file("binary", "\x00{"), "-y"}, process.ExitRefused, "no YAML"},
		"a list":               {"", []string{"swap", "--to", file("list", "- a\n"), "-y"}, process.ExitRefused, "no YAML with the fields of a signer"},
		"an empty file":        {"", []string{"swap", "--to", file("empty", "# nothing\n"), "-y"}, process.ExitRefused, "it is empty"},
		"flags":                {"", []string{"rotate", "--pause", "--resume"}, process.ExitUsage, "--pause and --resume exclude each other"},
		"an argument":          {"", []string{"rotate", "now"}, process.ExitUsage, "ca rotate --help"},
		"watching JSON":        {"", []string{"status", "-w", "-o", "json"}, process.ExitUsage, "leave out -o"},
		"an unknown output":    {"", []string{"roots", "-o", "per"}, process.ExitUsage, "did you mean"},
		"a mistyped command":   {"", []string{"rotat"}, process.ExitUsage, "did you mean `fairlead ca rotate`?"},
		"a flag as a command":  {"", []string{"rollback"}, process.ExitUsage, "did you mean `fairlead ca rotate --rollback`?"},
		"a mistyped flag":      {"", []string{"rotate", "--rolback"}, process.ExitUsage, "did you mean --rollback?"},
		"the other one's flag": {"", []string{"rotate", "--to", good}, process.ExitUsage, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := startCA(t, idle())
			_, code, err := clitest.Run(tc.stdin, append(append([]string{"ca"}, tc.args...), ca.flags(t)...)...)
			if code != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d, %v", code, err)
			}
			if got := ca.told(); len(got) > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestAnswersOfTheCA(t *testing.T) {
	for name, tc := range map[string]struct {
		code int
		exit int
		want string
	}{
		"of the state":  {http.StatusConflict, process.ExitFailure, ": the ca's words"},
		"of the file":   {http.StatusBadRequest, process.ExitRefused, ": the ca's words"},
		"of rights":     {http.StatusForbidden, process.ExitFailure, "--token-file"},
		"of an old one": {http.StatusNotFound, process.ExitFailure, "upgrade the control plane first"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := startCA(t, idle())
			ca.code, ca.problem = tc.code, "the ca's words"
			_, code, err := clitest.Run("", append([]string{"ca", "rotate", "-y"}, ca.flags(t)...)...)
			if code != tc.exit || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d, %v", code, err)
			}
		})
	}
	ca := startCA(t, idle())
	ca.cut = true
	if _, code, err := clitest.Run("", append([]string{"ca", "rotate", "-y"}, ca.flags(t)...)...); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "whether it has taken the command is not known") || len(ca.told()) != 1 {
		t.Errorf("%d, %v, %v", code, err, ca.told())
	}
	another := []string{"ca", "status", "--ca-address", ca.address, "--token-file", clitest.TokenFile(t, "another")}
	if _, code, err := clitest.Run("", another...); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "does not allow it: not an administrator") {
		t.Errorf("%d, %v", code, err)
	}
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	ca.address = strings.TrimPrefix(old.URL, "http://")
	if _, code, err := clitest.Run("", append([]string{"ca", "status"}, ca.flags(t)...)...); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "is of a version that cannot rotate") {
		t.Errorf("%d, %v", code, err)
	}
	if _, _, err := clitest.Run("", "ca", "roots", "--run-dir", t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "fairlead up --run-dir") {
		t.Error(err)
	}
}

// runDir writes the state of a mesh with replicas of the ca.
func runDir(t *testing.T, cas ...*fakeCA) string {
	t.Helper()
	s := runstate.State{PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()), TrustDomain: testkit.TrustDomain,
		AdminTokenFile: clitest.TokenFile(t, "admin")}
	for i, ca := range cas {
		s.Services = append(s.Services, runstate.Service{Process: runstate.Process{Name: fmt.Sprintf("ca-%d", i)}, Program: "ca",
			OpsAddress: ca.address})
	}
	dir := t.TempDir()
	if err := rundir.Write(rundir.Layout{Dir: dir}, &s); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheLeaderIsAsked(t *testing.T) {
	follower := idle()
	follower.Leader = "ca-1"
	leader := follower
	leader.Replica, leader.Generation = "ca-1", 5
	cas := []*fakeCA{startCA(t, follower), startCA(t, leader)}
	dir := runDir(t, cas...)
	if out, _, err := clitest.Run("", "ca", "status", "--run-dir", dir); err != nil || !strings.Contains(out, "generation 5") {
		t.Errorf("%v, %s", err, out)
	}
	if _, _, err := clitest.Run("", "ca", "rotate", "-y", "--run-dir", dir); err != nil || len(cas[0].told()) != 0 || len(cas[1].told()) != 1 {
		t.Errorf("%v, %v, %v", err, cas[0].told(), cas[1].told())
	}
	cas[1].set(func(c *fakeCA) { c.down = true })
	if out, _, err := clitest.Run("", "ca", "status", "--run-dir", dir); err != nil ||
		!strings.Contains(out, "ca-1; this is what ca-0 says") {
		t.Errorf("%v, %s", err, out)
	}
	cas[0].set(func(c *fakeCA) { c.down = true })
	if _, _, err := clitest.Run("", "ca", "status", "--run-dir", dir); err == nil ||
		!strings.Contains(err.Error(), "ca-0: not now\nca-1: not now") {
		t.Error(err)
	}
	if _, _, err := clitest.Run("", "ca", "status", "--run-dir", runDir(t)); err == nil || !strings.Contains(err.Error(), "has no ca") {
		t.Error(err)
	}
}

// start runs a command until ctx ends, or it does.
func start(ctx context.Context, args ...string) (shown *clitest.SharedBuffer, done chan error) {
	shown, done = &clitest.SharedBuffer{}, make(chan error, 1)
	go func() {
		env := command.Env{Out: shown, Err: shown, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }}
		done <- cli.Run(ctx, env, args)
	}()
	return shown, done
}

func prints(t *testing.T, shown *clitest.SharedBuffer, want string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if out := shown.String(); !strings.Contains(out, want) {
			return fmt.Errorf("%q lacks %q", out, want)
		}
		return nil
	})
}

func TestWatchEndsWithTheRotation(t *testing.T) {
	ca := startCA(t, gate())
	shown, done := start(t.Context(), append([]string{"ca", "status", "-w"}, ca.flags(t)...)...)
	prints(t, shown, "gate: 2 holders that do not trust the next roots yet: shop/web-0, shop/api-0\n")
	ca.set(func(c *fakeCA) { c.down = true })
	prints(t, shown, "not now; asking again\n")
	ca.set(func(c *fakeCA) { c.down, c.status = false, idle() })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if out := shown.String(); !strings.HasSuffix(out, "idle\n") || strings.Count(out, "gate: ") != 1 {
		t.Errorf("%q", out)
	}
}

func TestWatchWithoutARotationGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ca := startCA(t, idle())
	shown, done := start(ctx, append([]string{"ca", "status", "-w"}, ca.flags(t)...)...)
	prints(t, shown, "idle\n")
	ca.set(func(c *fakeCA) { c.status = gate() })
	prints(t, shown, "gate: ")
	ca.set(func(c *fakeCA) { c.status = idle() })
	testkit.Eventually(t, 20*time.Second, func() error {
		if out := shown.String(); strings.Count(out, "idle\n") != 2 {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWaitSaysWhereTheRotationLed(t *testing.T) {
	done := func(c *fakeCA) {
		c.status = idle()
		c.status.Signers = []caapi.Signer{{ID: 2, Name: "next", Kind: "vault", Role: "current"}}
	}
	for name, tc := range map[string]struct {
		end  func(c *fakeCA)
		want string
	}{
		"done":    {done, ""},
		"aborted": {func(c *fakeCA) { c.status = idle() }, "aborted or rolled back: signer 1 issues, not signer 2"},
		"another one has begun": {func(c *fakeCA) {
			done(c)
			c.status.Step, c.status.Began = "prepare", time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ca := startCA(t, idle())
			shown, ended := start(t.Context(), append([]string{"ca", "rotate", "--yes", "--wait"}, ca.flags(t)...)...)
			prints(t, shown, "prepare\n")
			ca.set(tc.end)
			if err := <-ended; (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ca := startCA(t, idle())
	shown, ended := start(ctx, append([]string{"ca", "rotate", "--yes", "--wait"}, ca.flags(t)...)...)
	prints(t, shown, "prepare\n")
	cancel()
	if err := <-ended; process.ExitCode(err) != process.ExitFailure || !strings.Contains(err.Error(), "the rotation goes on") {
		t.Error(err)
	}
}

func TestCompletion(t *testing.T) {
	ca := startCA(t, gate())
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"rotate", "--accept", "shop/w"}, "shop/web-0\n:4\n"},
		{[]string{"swap", "--accept", ""}, "shop/api-0\nshop/web-0\n:4\n"},
		{[]string{"roots", "-o", "p"}, "short\ntable\npem\njson\nyaml\n:4\n"},
		{[]string{"swap", "--to", ""}, "yaml\nyml\njson\n:8\n"},
	} {
		last := len(tc.args) - 1
		args := append(append([]string{"__complete", "ca"}, tc.args[:last-1]...), ca.flags(t)...)
		out, _, err := clitest.Run("", append(args, tc.args[last-1:]...)...)
		if err != nil || !strings.HasPrefix(out, tc.want) {
			t.Errorf("%v: %v, %q", tc.args, err, out)
		}
	}
}
