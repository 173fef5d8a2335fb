// Package install compares `fairlead manifest generate` with `istioctl manifest generate` on Istio's own install
// package: the verdict on the inputs, and the objects. `make oracle` runs it.
package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/process"
)

// Case is the inputs of one installation.
type Case struct {
	Name string `json:"name"`
	// Set are the settings, Files the texts of the files, Flags further flags.
	Set   []string `json:"set,omitempty"`
	Files []string `json:"files,omitempty"`
	Flags []string `json:"flags,omitempty"`
}

// Text shows the inputs.
func (c Case) Text() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Programs are the two that are compared, and the install package that both read.
type Programs struct {
	Istioctl, Fairlead, Manifests string
}

// Outcome is what one program did.
type Outcome struct {
	// Refused is its error; empty if it generated objects.
	Refused string
	// Objects by their identity, as YAML.
	Objects map[string]string
	// Said is what it wrote to standard error.
	Said string
}

// Run runs both programs on a case, with files in dir.
func (p Programs) Run(ctx context.Context, dir string, c Case) (istio, ours Outcome, err error) {
	a, err := inputs(dir, c)
	if err != nil {
		return istio, ours, err
	}
	a = append([]string{"manifest", "generate", "--manifests", p.Manifests}, a...)
	if istio, err = generate(ctx, p.Istioctl, a); err != nil {
		return istio, ours, err
	}
	ours, err = generate(ctx, p.Fairlead, a)
	return istio, ours, err
}

// inputs writes the files of a case to dir, and returns the flags of the case.
func inputs(dir string, c Case) ([]string, error) {
	var a []string
	for i, text := range c.Files {
		name := filepath.Join(dir, fmt.Sprintf("file-%d.yaml", i))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, err
		}
		a = append(a, "-f", name)
	}
	for _, s := range c.Set {
		a = append(a, "--set", s)
	}
	return append(a, c.Flags...), nil
}

func generate(ctx context.Context, program string, a []string) (Outcome, error) {
	answer, err := process.Ask(exec.CommandContext(ctx, program, a...)) //nolint:gosec // the programs that the test compares
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Said: answer.Said, Objects: divide(answer.Out)}
	if answer.Code != 0 {
		o.Refused = firstLine(o.Said)
	}
	return o, nil
}

func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "warning:") && !strings.HasPrefix(line, "!") {
			return line
		}
	}
	return "it ended without a word"
}

var (
	kindLine      = regexp.MustCompile(`(?m)^kind: (.*)$`)
	nameLine      = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*?  name: (.*)$`)
	namespaceLine = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*?  namespace: (.*)$`)
)

// divide divides a stream of objects. Both programs write keys in order, so that the lines of the identity can be read
// without parsing a megabyte. Objects of one name, such as those of an ingress and an egress gateway that are called
// alike, are told apart by their texts: istioctl writes them in either order.
func divide(text string) map[string]string {
	named := map[string][]string{}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		if doc = strings.TrimSpace(doc); doc == "" {
			continue
		}
		id := first(kindLine, doc) + " " + first(namespaceLine, doc) + "/" + first(nameLine, doc)
		named[id] = append(named[id], doc)
	}
	all := map[string]string{}
	for id, docs := range named {
		slices.Sort(docs)
		for i, doc := range docs {
			all[id+strings.Repeat("+", i)] = doc
		}
	}
	return all
}

func first(r *regexp.Regexp, text string) string {
	if m := r.FindStringSubmatch(text); m != nil {
		return strings.Trim(m[1], `"'`)
	}
	return ""
}

// Differing lists what differs, as "kind namespace/name"; a verdict that differs is "verdict". Nulls and absent fields
// are the same.
func Differing(istio, ours Outcome) ([]string, error) {
	if (istio.Refused == "") != (ours.Refused == "") {
		return []string{"verdict"}, nil
	}
	if istio.Refused != "" {
		return nil, nil
	}
	var differ []string
	ids := maps.Clone(istio.Objects)
	maps.Copy(ids, ours.Objects)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		a, b := istio.Objects[id], ours.Objects[id]
		if a == b {
			continue
		}
		same, err := equal(a, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		if !same {
			differ = append(differ, id)
		}
	}
	return differ, nil
}

func equal(a, b string) (bool, error) {
	if a == "" || b == "" {
		return false, nil
	}
	var x, y any
	if err := errors.Join(yaml.Unmarshal([]byte(a), &x), yaml.Unmarshal([]byte(b), &y)); err != nil {
		return false, err
	}
	return reflect.DeepEqual(withoutNulls(x), withoutNulls(y)), nil
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if item == nil {
				delete(v, k)
			} else {
				v[k] = withoutNulls(item)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return v
}
