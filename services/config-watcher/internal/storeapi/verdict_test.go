package storeapi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/offline"
)

// further are texts that the scenarios have none of.
var further = []string{
	"{apiVersion: istio.io/v1, kind: VirtualService, metadata: {name: x}, spec: {}}",
	"{apiVersion: networking/v1, kind: VirtualService, metadata: {name: x}, spec: {}}",
	"{apiVersion: v1, kind: Servce, metadata: {name: x}, spec: {}}",
	"{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {}}",
	"{apiVersion: v1, kind: ServiceAccount, metadata: {name: x}}\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: x}}",
	"kind: [", "- 1", "# nothing", "",
}

// TestValidateAndApplyAgree judges every text of the scenarios as `fairlead validate` does, and as `fairlead config
// apply` does.
func TestValidateAndApplyAgree(t *testing.T) {
	texts := append([]string{}, further...)
	for _, dir := range []string{"cases", "tenants", "examples"} {
		files, err := filepath.Glob(filepath.Join("../../../../tests/scenarios", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var scenario any
			if err := yaml.Unmarshal(raw, &scenario); err != nil {
				t.Fatal(f, err)
			}
			texts = append(texts, objectTexts(scenario)...)
		}
	}
	refusals := 0
	for _, text := range texts {
		_, _, err := (&Server{}).applied(
			&configv1.ApplyRequest{SkipUnread: true, Documents: []*configv1.Document{{Name: offline.StdinName, Content: []byte(text)}}})
		var problems object.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Errorf("apply: %v\n%s", err, text)
		}
		applied := map[string]bool{}
		for _, p := range problems {
			applied[p.Description()] = true
		}
		validated := map[string]bool{}
		if err := offline.Validate([]string{offline.Stdin}, strings.NewReader(text), false, func(v offline.Verdict) {
			for _, f := range v.Errors {
				validated[f.Message] = true
			}
		}); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(strings.TrimPrefix(text, "# nothing")) == "" {
			continue // fairlead config apply refuses it before it calls
		}
		if len(applied) > 0 {
			refusals++
		}
		if a, v := keys(applied), keys(validated); a != v {
			t.Errorf("apply refuses with\n%s\nvalidate with\n%s\nthis:\n%s", a, v, text)
		}
	}
	t.Logf("%d texts, %d of them refused", len(texts), refusals)
	if len(texts) < 500 || refusals < 50 {
		t.Error("the scenarios are not read")
	}
}

func keys(set map[string]bool) string {
	raw, _ := json.Marshal(set) // sorted; it can be written
	return string(raw)
}

// objectTexts lists what the steps of a scenario apply, well or ill.
func objectTexts(node any) (out []string) {
	switch n := node.(type) {
	case []any:
		for _, item := range n {
			out = append(out, objectTexts(item)...)
		}
	case map[string]any:
		for name, item := range n {
			text, isText := item.(string)
			if isText && (name == "apply" || name == "applyNoWait" || name == "yaml") {
				out = append(out, text)
			}
			out = append(out, objectTexts(item)...)
		}
	}
	return out
}
