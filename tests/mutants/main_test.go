package main

import (
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestSampled: every mutant's turn comes, and each sample has as many as were asked for.
func TestSampled(t *testing.T) {
	var mutants []Mutant
	if err := yaml.UnmarshalStrict(list, &mutants); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for seed := range 200 {
		chosen := sampled(mutants, 3, string(rune('a'+seed)))
		if len(chosen) != 3 {
			t.Fatalf("%d chosen", len(chosen))
		}
		for _, m := range chosen {
			seen[m.Name] = true
		}
	}
	if len(seen) != len(mutants) || len(sampled(mutants, 0, "")) != len(mutants) {
		t.Errorf("%d of %d mutants are ever chosen", len(seen), len(mutants))
	}
}

// TestSources: each mutant has its place in the code of today.
func TestSources(t *testing.T) {
	var mutants []Mutant
	if err := yaml.UnmarshalStrict(list, &mutants); err != nil {
		t.Fatal(err)
	}
	if err := os.Chdir("../.."); err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if _, _, err := m.source(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}
