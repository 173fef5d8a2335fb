package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
)

const (
	silent = "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {istio-injection: enabled}}}\n"
	info   = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n"
	wrong  = "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], " +
		"gateways: [none], http: [{route: [{destination: {host: web}}]}]}}\n"
)

func runAnalyze(stdin string, args ...string) (out, diagnostics string, code int, err error) {
	var stdout, stderr bytes.Buffer
	cmd := command()
	cmd.SetArgs(append([]string{"analyze"}, args...))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(context.Background())
	return stdout.String(), stderr.String(), process.ExitCode(err), err
}

func TestAnalyzeExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		stdin string
		args  string
		code  int
		// says is a part of the output, of what stands beside it, or of the error.
		says string
	}{
		"nothing":                   {silent, "-", 0, "objects analyzed: 1, messages: 0"},
		"below the threshold":       {info, "-", 0, "Info      NamespaceNotInjected  IST0102"},
		"at the threshold":          {info, "- --failure-threshold info", 79, "1 found of severity info or worse"},
		"above it":                  {info + "---\n" + wrong, "- --failure-threshold=Warning", 79, "GatewayNotFound"},
		"not shown and counted":     {info, "- --failure-threshold info --output-threshold error", 79, "messages: 0"},
		"as istioctl prints it":     {wrong, "- -o log", 79, "Error [IST0101] (VirtualService web.shop stdin:1) spec.gateways[0]:"},
		"suppressed":                {wrong, "- --suppress IST0101=*", 0, "1 suppressed"},
		"another namespace":         {wrong, "- -n bank", 0, "messages: 0"},
		"its namespace":             {wrong, "- -n shop", 79, "GatewayNotFound"},
		"all namespaces":            {wrong, "- -n bank -A", 79, "GatewayNotFound"},
		"text":                      {silent + "---\na: [", "-", 65, "TextUnreadable"},
		"text that does not matter": {silent + "---\na: [", "- --ignore-unknown", 0, "messages: 0"},
		"a kind that nobody looks at": {silent + "---\n{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}}", "-", 0,
			"kinds that are not looked at: PersistentVolume"},
		"what cannot be known is said": {wrong, "-", 79, "not looked for"},
		"list":                         {"", "-L", 0, "IST0101"},
		"no file":                      {"", "", 2, "--kube"},
		"no such file":                 {"", "/does/not/exist", 2, "/does/not/exist"},
		"no such format":               {"", "- -o xml", 2, "xml"},
		"no such severity":             {"", "- --failure-threshold bad", 2, "bad"},
		"no such suppression":          {"", "- -S x", 2, "CODE=KIND"},
		"no such mesh configuration":   {"", "- --mesh-config-file /does/not/exist", 2, "--mesh-config-file"},
		"a context without --kube":     {"", "- --context a", 2, "add --kube"},
		"no API server":                {"", "--kube --kubeconfig /does/not/exist", 1, "/does/not/exist"},
		"no time":                      {"", "--kube --timeout 0s", 2, "--timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			out, diagnostics, code, err := runAnalyze(tc.stdin, strings.Fields(tc.args)...)
			all := out + diagnostics
			if err != nil {
				all += err.Error()
			}
			if code != tc.code || !strings.Contains(all, tc.says) {
				t.Errorf("exit code %d, want %d; %q does not say %q", code, tc.code, all, tc.says)
			}
		})
	}
}

func TestAnalyzeAsJSON(t *testing.T) {
	out, _, _, err := runAnalyze(wrong, "-", "-o", "json")
	var list []map[string]string
	if jsonErr := json.Unmarshal([]byte(out), &list); jsonErr != nil || len(list) != 1 {
		t.Fatalf("%q, %v, %v", out, err, jsonErr)
	}
	for k, v := range map[string]string{
		"code": "IST0101", "name": "GatewayNotFound", "level": "Error", "origin": "VirtualService shop/web", "reference": "stdin:1",
		"field": "spec.gateways[0]", "value": `"none"`,
		"documentationUrl": "docs/reference/findings.md#gatewaynotfound",
	} {
		if list[0][k] != v {
			t.Errorf("%s is %q, want %q", k, list[0][k], v)
		}
	}
	if list[0]["message"] == "" || list[0]["remedy"] == "" {
		t.Errorf("%v", list[0])
	}
	if out, _, _, _ = runAnalyze(wrong, "-", "-o", "yaml"); !strings.Contains(out, "- code: IST0101") {
		t.Errorf("YAML %q", out)
	}
	for _, format := range []string{"json", "yaml"} {
		if out, _, _, _ = runAnalyze(silent, "-", "-o", format); strings.TrimSpace(out) != "[]" {
			t.Errorf("%s of nothing is %q", format, out)
		}
	}
}

func TestAnalyzeTakesTheMeshConfigurationOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, []byte("rootNamespace: mesh-root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const root = "{apiVersion: v1, kind: Namespace, metadata: {name: mesh-root}}"
	if out, _, _, _ := runAnalyze(root, "-"); !strings.Contains(out, "NamespaceNotInjected") {
		t.Errorf("without the file: %q", out)
	}
	if out, _, _, _ := runAnalyze(root, "-", "--mesh-config-file", file); out != "" {
		t.Errorf("with it: %q", out)
	}
}
