package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"fairlead.dev/tests/internal/process"
)

// Verdict is what one side says of an object: why it refuses it, nothing if it accepts.
type Verdict []string

// Both is what both say of it.
type Both struct {
	Object
	Istio, Ours Verdict
}

// Differ tells whether only one of them refuses.
func (b Both) Differ() bool { return (len(b.Istio) > 0) != (len(b.Ours) > 0) }

// Judge asks istioctl and config-watcher about all objects, each in one call. dir is for files of its own.
func Judge(ctx context.Context, istioctl, watcher, dir string, objects []Object) ([]Both, error) {
	out := make([]Both, len(objects))
	var text bytes.Buffer
	for i, o := range objects {
		js, err := json.Marshal(o.named(nameOf(i)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Origin, err)
		}
		fmt.Fprintf(&text, "---\n%s\n", js)
		out[i].Object = o
	}
	file := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	istio, err := askIstio(ctx, istioctl, file)
	if err != nil {
		return nil, err
	}
	ours, err := askWatcher(ctx, watcher, file, len(objects))
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].Istio, out[i].Ours = istio[i], ours[i]
		delete(istio, i)
	}
	for _, strange := range istio {
		return nil, fmt.Errorf("istioctl refuses an object that it was not asked about: %s", strange)
	}
	return out, nil
}

// nameOf is what the object is called while it is judged.
func nameOf(i int) string { return fmt.Sprintf("o-%d", i) }

// indexOf is the place of an object called so.
func indexOf(name string) (int, error) {
	var i int
	_, err := fmt.Sscanf(name, "o-%d", &i)
	return i, err
}

// errorsBegin is the line above istioctl's errors; warnings have the same form and stand before it.
var errorsBegin = regexp.MustCompile(`(?m)^Error: \d+ errors? occurred:$`)

// errorLine is one that begins what is said of an object.
var errorLine = regexp.MustCompile(`^\t\* [A-Za-z]+/[^/]*/(o-[0-9][^:]*): (.*)$`)

// askIstio runs `istioctl validate`. It prints an error a line, "\t* Kind/namespace/name: text"; a line that is none
// belongs to the one before.
func askIstio(ctx context.Context, istioctl, file string) (map[int]Verdict, error) {
	cmd := exec.CommandContext(ctx, istioctl, "validate", "-f", file)
	cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null")
	answer, err := process.Ask(cmd)
	if err != nil {
		return nil, err
	}
	verdicts := map[int]Verdict{}
	if answer.Code == 0 {
		return verdicts, nil
	}
	begin := errorsBegin.FindStringIndex(answer.Said)
	if begin == nil {
		return nil, fmt.Errorf("istioctl: exit code %d: %s", answer.Code, answer.Said)
	}
	last := -1
	for line := range strings.Lines(answer.Said[begin[1]:]) {
		if i, says, ok := entry(line); ok {
			verdicts[i] = append(verdicts[i], says)
			last = i
		} else if text := strings.TrimSpace(line); text != "" && last >= 0 {
			v := verdicts[last]
			v[len(v)-1] += " " + text
		} else if text != "" {
			return nil, fmt.Errorf("istioctl says %q, which is about no object", text)
		}
	}
	return verdicts, nil
}

// entry reads a line that begins what istioctl says of an object.
func entry(line string) (i int, says string, ok bool) {
	m := errorLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
	if m == nil {
		return 0, "", false
	}
	i, err := indexOf(m[1])
	return i, m[2], err == nil
}

// askWatcher runs `config-watcher validate`.
func askWatcher(ctx context.Context, watcher, file string, objects int) (map[int]Verdict, error) {
	printed, err := process.Ask(exec.CommandContext(ctx, watcher, "validate", "-o", "json", file))
	if err != nil {
		return nil, err
	}
	if printed.Code != 0 && printed.Code != 3 {
		return nil, fmt.Errorf("config-watcher validate: exit code %d: %s", printed.Code, printed.Said)
	}
	var answer struct {
		Objects []struct {
			Kind, Name string
			Line       int
			Ignored    bool
			Errors     []struct{ Field, Message string }
		}
	}
	if err := json.Unmarshal([]byte(printed.Out), &answer); err != nil {
		return nil, err
	}
	if len(answer.Objects) != objects {
		return nil, fmt.Errorf("config-watcher validate judged %d objects of %d", len(answer.Objects), objects)
	}
	verdicts := map[int]Verdict{}
	for _, o := range answer.Objects {
		i, err := indexOf(o.Name)
		if err != nil || o.Ignored {
			return nil, fmt.Errorf("config-watcher validate does not judge %s %q of line %d", o.Kind, o.Name, o.Line)
		}
		for _, e := range o.Errors {
			verdicts[i] = append(verdicts[i], strings.TrimPrefix(e.Field+": ", ": ")+e.Message)
		}
	}
	return verdicts, nil
}
