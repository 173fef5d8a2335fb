package scenarios

import "testing"

// otherWords are the scenarios of which Kubernetes refuses objects itself, before config-watcher's webhook is asked.
// They run from Kubernetes too, and the objects must be refused there: only the words are Kubernetes' own, and are not
// compared with the scenario's. Each says how many objects that is; with more or fewer the scenario fails. The suite's
// table names those that ran. No scenario is left out.
var otherWords = map[string]otherWord{
	"dr-reject-policies":       {7, "CustomResourceDefinition: required fields, one of several, bounds"},
	"dr-reject-values":         {5, "CustomResourceDefinition: required fields, bounds"},
	"ef-invalid":               {1, "CustomResourceDefinition: waypoint matches"},
	"gw-invalid":               {2, "CustomResourceDefinition: required fields"},
	"ing-reject":               {6, "Kubernetes' validation of Ingress and IngressClass"},
	"peer-invalid":             {3, "CustomResourceDefinition: portLevelMtls without a selector, wildcards, names of modes"},
	"se-dns-round-robin":       {1, "CustomResourceDefinition: one endpoint"},
	"se-reject":                {5, "CustomResourceDefinition: hosts, addresses, ports"},
	"svc-traffic-distribution": {1, "Kubernetes' validation of Service"},
	"vs-l4-invalid":            {2, "CustomResourceDefinition: required fields"},
	"vs-reject-hosts":          {2, "fields that the CustomResourceDefinition does not have (strict decoding)"},
	"vs-reject-values":         {3, "CustomResourceDefinition: durations, bounds"},
	"we-reject":                {3, "CustomResourceDefinition: addresses, ports"},
}

type otherWord struct {
	refusals int
	by       string
}

// TestScenariosOfOtherWordsExist: each of the list is one that runs, with at least as many refusals.
func TestScenariosOfOtherWordsExist(t *testing.T) {
	rejects := map[string]int{}
	for _, s := range all(t, "cases", "examples") {
		for i := range s.Steps {
			if s.Steps[i].Reject != nil {
				rejects[s.Name]++
			}
		}
	}
	for name, other := range otherWords {
		if other.refusals < 1 || other.refusals > rejects[name] || other.by == "" {
			t.Errorf("%s is listed with %d refusals by %q, and has %d", name, other.refusals, other.by, rejects[name])
		}
	}
}
