// Command mutants breaks the code in one place at a time and runs what must notice: scenarios, tests of tests/e2e, or
// the tests of a package. It ends with 1 if a mutant survives.
//
//	go run ./tests/mutants [-run REGEX] [-sample N -seed TEXT]   from the repository's root, with bin/ built
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Mutant is one change of the source.
type Mutant struct {
	// Name says what is broken.
	Name string `json:"name"`
	// File is below services/xds-server/internal, and from the root of the repository if Package is set; Old must be in
	// it exactly once, and is replaced by New.
	File string `json:"file"`
	Old  string `json:"old"`
	New  string `json:"new"`
	// Scenarios is a regular expression for the names of the scenarios of tests/scenarios/cases and gatewayapi that are
	// run.
	Scenarios string `json:"scenarios"`
	// Tests is one for the tests of Package, for what no scenario sees; Scenarios is empty then.
	Tests string `json:"tests"`
	// Package is a folder from the root of the repository whose tests are built with the mutant. Without one, Tests are
	// those of tests/e2e, with an xds-server that is the mutant.
	Package string `json:"package"`
}

//go:embed mutants.yaml
var list []byte

func main() {
	only := flag.String("run", "", "run only the mutants whose names match")
	sample := flag.Int("sample", 0, "run only this many of them, which -seed decides; 0: all")
	seed := flag.String("seed", "", "text that decides which are a sample, such as a commit's hash")
	bin := flag.String("bin", "bin", "directory with the built services")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *bin, *sample, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, bin string, sample int, seed string) error {
	var mutants []Mutant
	if err := yaml.UnmarshalStrict(list, &mutants); err != nil {
		return err
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	// All of them, so that a text which is gone is found whatever the sample.
	for _, m := range mutants {
		if _, _, err := m.source(); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	mutants = slices.DeleteFunc(mutants, func(m Mutant) bool { return !pattern.MatchString(m.Name) })
	var survived []error
	for _, m := range sampled(mutants, sample, seed) {
		begin := time.Now()
		err := try(ctx, &m, dir, bin)
		word := "caught"
		if err != nil {
			word = "NOT CAUGHT: " + err.Error()
			survived = append(survived, fmt.Errorf("%s: %w", m.Name, err))
		}
		fmt.Printf("%-60s %s (%s)\n", m.Name, word, time.Since(begin).Round(time.Second))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(survived...)
}

// sampled chooses n mutants, one after the other in the list, by a text; all if n is 0.
func sampled(mutants []Mutant, n int, seed string) []Mutant {
	if n <= 0 || n >= len(mutants) {
		return mutants
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(seed)) // never fails
	first := int(hash.Sum32() % uint32(len(mutants)))
	return slices.Concat(mutants, mutants)[first : first+n]
}

// source reads the file to change, and refuses one that has not exactly one place to.
func (m *Mutant) source() (file, text string, err error) {
	below := "services/xds-server/internal"
	if m.Package != "" {
		below = "."
	}
	if file, err = filepath.Abs(filepath.Join(below, m.File)); err != nil {
		return "", "", err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	if n := strings.Count(string(raw), m.Old); n != 1 {
		return "", "", fmt.Errorf("%s has the text to replace %d times, want once", m.File, n)
	}
	return file, string(raw), nil
}

// try builds the mutant, and wants a test to fail.
func try(ctx context.Context, m *Mutant, dir, bin string) error {
	file, source, err := m.source()
	if err != nil {
		return err
	}
	at, err := os.MkdirTemp(dir, "")
	if err != nil {
		return err
	}
	mutated := filepath.Join(at, "mutated.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(at, 0o755),
		os.WriteFile(mutated, []byte(strings.Replace(source, m.Old, m.New, 1)), 0o644),
		os.WriteFile(mutated+".json", overlay, 0o644)); err != nil {
		return err
	}
	overlaid := mutated + ".json"
	if m.Package != "" {
		return notices(ctx, nil, "--- FAIL: ", "-overlay", overlaid, "./"+m.Package, "-run", m.Tests)
	}
	if err := buildServer(ctx, overlaid, bin, at); err != nil {
		return err
	}
	if m.Tests != "" {
		return notices(ctx, []string{"BIN_DIR=" + at}, "--- FAIL: Test", "./tests/e2e", "-run", m.Tests)
	}
	return notices(ctx, []string{"BIN_DIR=" + at}, "--- FAIL: TestScenarios/",
		"./tests/scenarios", "-dir", "cases,examples,gatewayapi", "-run", m.Scenarios)
}

// buildServer builds an xds-server with the overlay into a directory, beside links to the other services in bin.
func buildServer(ctx context.Context, overlay, bin, at string) error {
	services, err := filepath.Glob(filepath.Join(bin, "*"))
	if err != nil {
		return err
	}
	for _, path := range services {
		if err := os.Symlink(path, filepath.Join(at, filepath.Base(path))); err != nil {
			return err
		}
	}
	server := filepath.Join(at, "xds-server")
	if err := os.Remove(server); err != nil {
		return fmt.Errorf("run `make build` first: %w", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlay, "-o", server, "./services/xds-server/cmd/xds-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("does not build: %w: %s", err, out)
	}
	return nil
}

// notices runs `go test` with arguments, and returns an error unless its output tells a failed test by these words.
func notices(ctx context.Context, env []string, failed string, args ...string) error {
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout=10m"}, args...)...)
	test.Env = append(os.Environ(), env...)
	out, err := test.CombinedOutput()
	switch {
	case err == nil:
		return errors.New("all pass")
	case !strings.Contains(string(out), failed):
		return fmt.Errorf("none failed, the suite did: %s", out)
	}
	return nil
}
