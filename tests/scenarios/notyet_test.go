package scenarios

import "testing"

// TestNotYet: what is listed is a scenario, with a reason.
func TestNotYet(t *testing.T) {
	names := map[string]bool{}
	for _, s := range all(t, "cases", "examples") {
		names[s.Name] = true
	}
	for name, why := range notYet {
		if !names[name] || why == "" {
			t.Errorf("%s is listed with the reason %q, and is a scenario: %t", name, why, names[name])
		}
	}
}
