// Package report prints the findings of package whole: as a table, as lines like istioctl's, as JSON or YAML, and
// as SARIF, which code hosts show beside the lines of a change.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// Formats are the names of the formats that Print knows.
var Formats = []string{"table", "log", "json", "yaml", "sarif"}

// Print writes messages in a format.
func Print(out io.Writer, format string, messages []finding.Finding) error {
	switch format {
	case "table":
		return table(out, messages)
	case "log":
		for _, m := range messages {
			if _, err := fmt.Fprintln(out, line(m)); err != nil {
				return err
			}
		}
		return nil
	case "json", "yaml":
		return tree(out, records(messages), format == "yaml")
	case "sarif":
		return tree(out, sarif(messages), false)
	}
	return fmt.Errorf("no format %q", format)
}

func table(out io.Writer, messages []finding.Finding) error {
	if len(messages) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SEVERITY\tCODE\tISTIO\tOBJECT\tPLACE\tMESSAGE")
	for _, m := range messages {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", level(m.Severity), m.Code, orDash(m.Istio()), orDash(m.Resource()), orDash(m.Location),
			text(m))
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// text is a message without its object: field, what is wrong, and the remedy.
func text(m finding.Finding) string {
	if m.Field == "" {
		return m.Description()
	}
	return m.Field + ": " + m.Description()
}

// line is a message as istioctl writes it: "Error [IST0101] (VirtualService web.shop mesh.yaml:4) ...".
func line(m finding.Finding) string {
	code := m.Istio()
	if code == "" {
		code = string(m.Code)
	}
	return fmt.Sprintf("%s [%s] (%s) %s", level(m.Severity), code, strings.TrimSpace(m.Resource()+" "+m.Location), text(m))
}

// level is a severity as istioctl writes it.
func level(s finding.Severity) string { return strings.ToUpper(string(s[:1])) + string(s[1:]) }

// record is a message in JSON. The names of the fields that istioctl has as well are istioctl's.
type record struct {
	Code             string `json:"code"`
	Name             string `json:"name"`
	Level            string `json:"level"`
	Origin           string `json:"origin,omitempty"`
	Reference        string `json:"reference,omitempty"`
	Field            string `json:"field,omitempty"`
	Value            string `json:"value,omitempty"`
	Message          string `json:"message"`
	Remedy           string `json:"remedy,omitempty"`
	DocumentationURL string `json:"documentationUrl"`
}

func records(messages []finding.Finding) []record {
	out := []record{}
	for _, m := range messages {
		code := m.Istio()
		if code == "" {
			code = string(m.Code)
		}
		origin := m.Key.Kind
		if m.Key.Kind != "" {
			origin = strings.TrimSpace(m.Key.Kind + " " + strings.TrimPrefix(m.Key.Namespace+"/"+m.Key.Name, "/"))
		}
		out = append(out, record{
			Code: code, Name: string(m.Code), Level: level(m.Severity), Origin: origin, Reference: m.Location, Field: m.Field, Value: m.Value,
			Message: m.Reason, Remedy: m.Remedy,
			DocumentationURL: m.Code.Reference(),
		})
	}
	return out
}

func tree(out io.Writer, v any, asYAML bool) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err == nil && asYAML {
		content, err = yaml.JSONToYAML(content)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, strings.TrimRight(string(content), "\n"))
	return err
}
