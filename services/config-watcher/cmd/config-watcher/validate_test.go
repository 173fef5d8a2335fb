package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
)

const (
	accepted = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web}\n"
	refused  = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: Web}\n"
	warned   = "enableTracing: true\n"
)

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		code  int
		// last is the last line of the output, says what its error says.
		last, says string
	}{
		"accepted": {accepted, []string{"-"}, process.ExitOK, "1 object: 1 accepted, 0 refused, 0 with warnings", ""},
		"refused": {accepted + "---\n" + refused, []string{"-"}, process.ExitRefused,
			"2 objects: 1 accepted, 1 refused, 0 with warnings", "refused: 1 of 2"},
		"warned": {warned, []string{"-"}, process.ExitOK, "1 object: 1 accepted, 0 refused, 1 with warnings", ""},
		"warned and strict": {warned, []string{"--strict", "-"}, process.ExitRefused, "1 object: 1 accepted, 0 refused, 1 with warnings",
			"--strict"},
		"empty":          {"", []string{"-"}, process.ExitRefused, "1 object: 0 accepted, 1 refused, 0 with warnings", "refused"},
		"no path":        {"", nil, process.ExitUsage, "", "standard input"},
		"no such path":   {"", []string{"/does/not/exist"}, process.ExitUsage, "", "/does/not/exist"},
		"no such format": {"", []string{"-", "-o", "xml"}, process.ExitUsage, "", "xml"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := runValidate(tc.stdin, tc.args...)
			if code := process.ExitCode(err); code != tc.code {
				t.Errorf("exit code %d, want %d: %v", code, tc.code, err)
			}
			lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
			if last := lines[len(lines)-1]; last != tc.last {
				t.Errorf("last line %q, want %q", last, tc.last)
			}
			if tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q does not say %q", err, tc.says)
			}
		})
	}
}

func TestValidateAsText(t *testing.T) {
	out, _ := runValidate(accepted+"---\n"+refused, "-")
	const want = `stdin:7: ServiceAccount default/Web: metadata.name: "Web": not a valid name; `
	if !strings.HasPrefix(out, want) {
		t.Errorf("output %q, want prefix %q", out, want)
	}
	if out, _ = runValidate(warned, "-"); !strings.HasPrefix(out,
		"stdin:1: MeshConfig istio-system/istio: enableTracing: warning: has no effect") {
		t.Errorf("output %q", out)
	}
}

func TestValidateAsJSON(t *testing.T) {
	out, err := runValidate(accepted+"---\n"+refused, "-", "-o", "json")
	var answer struct {
		Objects []struct {
			File, Kind, Namespace, Name string
			Line                        int
			Errors, Warnings            []struct{ Field, Message string }
		}
		Summary struct{ Objects, Accepted, Refused int }
	}
	if process.ExitCode(err) != process.ExitRefused || json.Unmarshal([]byte(out), &answer) != nil || len(answer.Objects) != 2 {
		t.Fatalf("%q, %v", out, err)
	}
	bad := answer.Objects[1]
	if bad.File != "stdin" || bad.Line != 5 || bad.Kind != "ServiceAccount" || bad.Namespace != "default" || bad.Name != "Web" ||
		len(bad.Errors) != 1 || bad.Errors[0].Field != "metadata.name" {
		t.Errorf("verdict %+v", bad)
	}
	if len(answer.Objects[0].Errors) > 0 || answer.Summary.Accepted != 1 || answer.Summary.Refused != 1 {
		t.Errorf("answer %+v", answer)
	}
}

func runValidate(stdin string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(append([]string{"validate"}, args...))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}
