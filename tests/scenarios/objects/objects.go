// Package objects reads what scenario files apply, for tests that judge objects and start no mesh.
package objects

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/keys"
)

// Text is YAML that a step of a scenario applies, with stand-ins for the addresses, files and certificates of a fleet.
type Text struct {
	// Scenario is the file, Step the place in it.
	Scenario, Step string
	YAML           string
	// Refused tells that the step expects a refusal.
	Refused bool
}

// Of reads the scenarios of the directories, which are named from home, the directory of this package's parent.
func Of(home string, dirs ...string) ([]Text, error) {
	schema, err := os.ReadFile(filepath.Join(home, "schema.json"))
	if err != nil {
		return nil, err
	}
	loader, err := format.NewLoader(schema, os.DirFS(home))
	if err != nil {
		return nil, err
	}
	var out []Text
	for _, dir := range dirs {
		scenarios, err := loader.Load(filepath.Join(home, dir))
		if err != nil {
			return nil, err
		}
		for _, s := range scenarios {
			expanded, err := expand(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.File, err)
			}
			if t := s.Topology.Services; t != "" {
				out = append(out, Text{Scenario: s.File, Step: "/topology/services", YAML: t})
			}
			out = append(out, texts(s.File, "/steps", expanded.Steps)...)
		}
	}
	return out, nil
}

// expand gives every variable a value of the right form.
func expand(s *format.Scenario) (*format.Scenario, error) {
	certificates, err := format.Issue(s.Certificates, time.Now())
	if err != nil {
		return nil, err
	}
	always := func(value string) func(string) (string, error) {
		return func(string) (string, error) { return value, nil }
	}
	values := format.Values{
		Certificates: certificates, IP: always("198.18.0.7"), VIP: always("198.19.0.7"),
		Identity: always("spiffe://cluster.local/ns/apps/sa/client"), Files: always("/etc/files"),
	}
	if s, err = values.Expand(s); err != nil {
		return nil, err
	}
	values.Keys = unserved{keys.New(s.Tokens, keys.Place{})}
	steps := s.Steps
	s.Steps = nil
	for i := range steps {
		step, err := values.Now(&steps[i])
		if err != nil {
			return nil, err
		}
		s.Steps = append(s.Steps, *step)
	}
	return s, nil
}

// unserved are keys that nobody serves.
type unserved struct{ *keys.Ring }

// Token implements format.Keys. Calls have tokens, objects have none: nothing is signed.
func (unserved) Token(string) (string, error) { return "header.payload.signature", nil }

// URI implements format.Keys.
func (unserved) URI(key string, secure bool) (string, error) {
	return map[bool]string{false: "http", true: "https"}[secure] + "://198.18.0.8/" + key + "/jwks.json", nil
}

// Issuer implements format.Keys.
func (unserved) Issuer(key string) (string, error) { return "http://198.18.0.8/" + key, nil }

func texts(file, at string, steps []format.Step) []Text {
	var out []Text
	for i := range steps {
		step, here := &steps[i], fmt.Sprintf("%s/%d", at, i)
		switch {
		case step.Apply != "":
			out = append(out, Text{Scenario: file, Step: here, YAML: step.Apply})
		case step.ApplyNoWait != "":
			out = append(out, Text{Scenario: file, Step: here, YAML: step.ApplyNoWait})
		case step.Reject != nil:
			out = append(out, Text{Scenario: file, Step: here, YAML: step.Reject.YAML, Refused: true})
		case step.Eventually != nil:
			out = append(out, texts(file, here+"/eventually/steps", step.Eventually.Steps)...)
		}
	}
	return out
}
