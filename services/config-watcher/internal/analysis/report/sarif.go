package report

import (
	"net/url"
	"path/filepath"
	"strings"

	"fairlead.dev/pkg/version"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// The types below are the parts of SARIF 2.1.0 that are written
// (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID            string        `json:"id"`
		Short         sarifText     `json:"shortDescription"`
		Full          sarifText     `json:"fullDescription"`
		Help          sarifText     `json:"help"`
		Configuration sarifSeverity `json:"defaultConfiguration"`
		Properties    sarifTags     `json:"properties"`
	}
	sarifSeverity struct {
		Level string `json:"level"`
	}
	sarifTags struct {
		Tags []string `json:"tags"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
	sarifLogical struct {
		Name      string `json:"name"`
		Qualified string `json:"fullyQualifiedName"`
		Kind      string `json:"kind"`
	}
)

var sarifLevels = map[finding.Severity]string{finding.Error: "error", finding.Warning: "warning", finding.Info: "note"}

func sarif(messages []finding.Finding) sarifLog {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "fairlead", Version: version.Info().Version}}, ColumnKind: "unicodeCodePoints",
		Results: []sarifResult{}}
	at := map[finding.Code]int{}
	for i, d := range finding.Descriptions() {
		at[d.Code] = i
		tags := []string{}
		if d.Istio != "" {
			tags = append(tags, d.Istio)
		}
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
			ID: string(d.Code), Short: sarifText{plain(d.About)}, Full: sarifText{plain(d.About + " " + d.Effect)},
			Help:          sarifText{d.Code.Reference()},
			Configuration: sarifSeverity{sarifLevels[d.Severity]}, Properties: sarifTags{tags},
		})
	}
	for _, m := range messages {
		run.Results = append(run.Results, sarifResult{
			RuleID: string(m.Code), RuleIndex: at[m.Code], Level: sarifLevels[m.Severity], Message: sarifText{text(m)},
			Locations:    []sarifLocation{location(m)},
			Fingerprints: map[string]string{"objectFieldCode/v1": strings.Join([]string{m.Key.String(), m.Field, string(m.Code)}, "|")},
		})
	}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}

// plain takes the marks of Markdown out of a sentence.
func plain(s string) string { return strings.ReplaceAll(s, "`", "") }

func location(m finding.Finding) sarifLocation {
	var out sarifLocation
	if file, line := m.File(); file != "" {
		out.Physical = &sarifPhysical{Artifact: sarifArtifact{(&url.URL{Path: filepath.ToSlash(file)}).EscapedPath()}}
		if line > 0 {
			out.Physical.Region = &sarifRegion{line}
		}
	}
	if m.Key.Kind != "" {
		out.Logical = []sarifLogical{{Name: m.Key.Name, Qualified: m.Key.String(), Kind: "resource"}}
	}
	return out
}
