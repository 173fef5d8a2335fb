// Package analysis has config-watcher judge objects: it runs `config-watcher analyze` and `config-watcher validate`,
// because the rules are config-watcher's. Commands call it, and what gathers for `describe`, `bug-report` and
// `precheck`.
package analysis

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/local/programs"
)

// Severities are the levels of findings, the mildest first.
var Severities = []string{"info", "warning", "error"}

// FoundErrors is the exit code of an analysis that has found something as bad as its failure threshold.
const FoundErrors = 79

// Options say what Analyze reads and prints.
type Options struct {
	Files                                          []string
	Kube, All, IgnoreUnknown, List, MultiTenant    bool
	Kubeconfig, Context, Namespace, MeshConfigFile string
	// FailureThreshold and OutputThreshold are of Severities.
	FailureThreshold, OutputThreshold string
	// Suppress are CODE=KIND NAME.NAMESPACE.
	Suppress []string
	// Timeout bounds reading the API server.
	Timeout time.Duration
	// Output is the format; empty for a table.
	Output string
}

// Program runs the config-watcher that Finder finds, with In as its standard input.
type Program struct {
	Finder programs.Finder
	In     io.Reader
}

// run returns what the program has said on standard error. exit is its exit code; err says that it could not run.
func (p Program) run(ctx context.Context, args, files []string, out io.Writer) (said string, exit int, err error) {
	watcher, err := p.Finder.Program("config-watcher")
	if err != nil {
		return "", 0, err
	}
	var text bytes.Buffer
	cmd := exec.CommandContext(ctx, watcher, slices.Concat(args, []string{"--"}, files)...) //nolint:gosec // our own program
	cmd.Env = append(programs.BaseEnv(p.Finder.Getenv), kubernetesEnv(p.Finder.Getenv)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.In, out, &text
	err = cmd.Run()
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) && exited.ExitCode() > 0 {
		return text.String(), exited.ExitCode(), nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", watcher, err)
	}
	return text.String(), 0, err
}

// kubernetesEnv are the variables by which client-go finds the API server, and programs that a kubeconfig may run.
func kubernetesEnv(getenv func(string) string) []string {
	var out []string
	for _, name := range []string{"KUBECONFIG", "HTTPS_PROXY", "NO_PROXY", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		if v := getenv(name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// failure is the error of a program that has said text and exited with a code.
func failure(text string, exit int) error {
	return process.WithExitCode(errors.New(strings.TrimPrefix(text, "config-watcher: ")), exit)
}

// Analyze prints findings about a whole mesh. Its error has the exit code of `fairlead analyze`.
func (p Program) Analyze(ctx context.Context, o Options, out, diagnostics io.Writer) error {
	a := []string{"analyze", "--failure-threshold=" + o.FailureThreshold, "--output-threshold=" + o.OutputThreshold,
		"--timeout=" + o.Timeout.String()}
	for _, set := range []struct{ flag, value string }{
		{"output", o.Output}, {"kubeconfig", o.Kubeconfig}, {"context", o.Context}, {"namespace", o.Namespace},
		{"mesh-config-file", o.MeshConfigFile},
	} {
		if set.value != "" {
			a = append(a, "--"+set.flag+"="+set.value)
		}
	}
	for _, set := range []struct {
		flag string
		on   bool
	}{{"kube", o.Kube}, {"all-namespaces", o.All}, {"ignore-unknown", o.IgnoreUnknown}, {"list-analyzers", o.List},
		{"multi-tenant", o.MultiTenant}} {
		if set.on {
			a = append(a, "--"+set.flag)
		}
	}
	for _, s := range o.Suppress {
		a = append(a, "--suppress="+s)
	}
	said, exit, err := p.run(ctx, a, o.Files, out)
	lines := strings.Split(strings.TrimRight(said, "\n"), "\n")
	if exit > 0 { // the last line of a failure is the error, which is printed as fairlead's own
		err = failure(lines[len(lines)-1], exit)
		lines = lines[:len(lines)-1]
	}
	for _, line := range lines {
		if line != "" {
			fmt.Fprintln(diagnostics, line)
		}
	}
	return err
}

// JSON returns all findings as JSON, in all namespaces unless the options name one. The error is that of Analyze: that
// errors were found has the exit code FoundErrors, and the text is complete.
func (p Program) JSON(ctx context.Context, o Options) ([]byte, error) {
	o.FailureThreshold, o.OutputThreshold, o.Output, o.All = "error", "info", "json", o.Namespace == ""
	var out bytes.Buffer
	err := p.Analyze(ctx, o, &out, io.Discard)
	return out.Bytes(), err
}

// MigrateGatewayAPI prints objects of the Gateway API that stand for those of files, and what stays on diagnostics.
func (p Program) MigrateGatewayAPI(ctx context.Context, files []string, class string, out, diagnostics io.Writer) error {
	said, exit, err := p.run(ctx, []string{"migrate-gateway-api", "--class=" + class}, files, out)
	if exit > 0 {
		return failure(strings.TrimSpace(said), exit)
	}
	if err == nil {
		_, err = io.WriteString(diagnostics, said)
	}
	return err
}

// Validate prints verdicts about files of objects, as text or as JSON. Its error has the exit code of `fairlead
// validate`.
func (p Program) Validate(ctx context.Context, files []string, strict, asJSON bool, out io.Writer) error {
	a := []string{"validate", "--output=text"}
	if asJSON {
		a[1] = "--output=json"
	}
	if strict {
		a = append(a, "--strict")
	}
	said, exit, err := p.run(ctx, a, files, out)
	if exit > 0 {
		return failure(strings.TrimSpace(said), exit)
	}
	return err
}

// Refused says by "FILE:LINE" why objects of files are refused; those that are not mentioned are accepted. FILE is "-"
// for standard input.
func (p Program) Refused(ctx context.Context, files []string) (map[string]string, error) {
	var text bytes.Buffer
	if err := p.Validate(ctx, files, false, true, &text); err != nil && process.ExitCode(err) != process.ExitRefused {
		return nil, err
	}
	var verdicts struct {
		Objects []struct {
			File   string
			Line   int
			Errors []struct{ Field, Message string }
		}
	}
	if err := json.Unmarshal(text.Bytes(), &verdicts); err != nil {
		return nil, fmt.Errorf("config-watcher validate answers with what is no JSON: %w; do both programs have one version?", err)
	}
	refused := map[string]string{}
	for _, o := range verdicts.Objects {
		if o.File == "stdin" {
			o.File = "-"
		}
		var said []string
		for _, e := range o.Errors {
			if e.Field != "" {
				e.Message = e.Field + ": " + e.Message
			}
			said = append(said, e.Message)
		}
		if len(said) > 0 {
			refused[fmt.Sprintf("%s:%d", o.File, o.Line)] = strings.Join(said, "; ")
		}
	}
	return refused, nil
}
