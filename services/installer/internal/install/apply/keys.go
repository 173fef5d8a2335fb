package apply

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// stateFlag is the ca's flag that names the Secret of its record. A ca without it has its root and its record on a
// volume, or elsewhere on the disk.
const stateFlag = "--state-secret="

// keysStay refuses a change after which the ca would not find its root again, and would make another, which no workload
// trusts: from a volume to several replicas at once, and from a record in a Secret back to the volume. The way is a
// swap of signers. With force it is a note.
func (p *Plan) keysStay(force bool) error {
	var before, after *unstructured.Unstructured
	for _, ch := range p.Changes {
		if runsCA(ch.Live) {
			before = ch.Live
		}
		if runsCA(ch.After) {
			after = ch.After
		}
	}
	for _, v := range p.Prunes {
		if v.Fate == Delete && runsCA(v.Live) {
			before = v.Live
		}
	}
	if before == nil || after == nil {
		return nil
	}
	text := ""
	switch was, is := hasState(before), hasState(after); {
	case was && !is:
		text = "the ca's record is in a Secret, and it would begin anew with a root on its volume: keep values.ca.signer or " +
			"values.ca.keysSecret, and swap to a signer whose keys are in a directory"
	case !was && is && after.GetKind() == "StatefulSet":
		text = "the ca's root is on its volume, of which several replicas know nothing: install with values.ca.replicaCount=1 and the signer " +
			"that they are to share, wait for the swap (fairlead ca status -w), and add replicas then"
	default:
		return nil
	}
	text += " (docs/guide/ca-replicas.md)"
	if !force {
		return errors.New("nothing was changed: " + text + ". With --force, workloads get certificates that others do not trust")
	}
	p.Notes = append(p.Notes, fmt.Sprintf("%s %s: %s", after.GetKind(), after.GetName(), text))
	return nil
}

// argumentsOfCA are those of the container ca of a workload; ok is false if it has none.
func argumentsOfCA(u *unstructured.Unstructured) (args []string, ok bool) {
	if u == nil {
		return nil, false
	}
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	for _, item := range containers {
		container, _ := item.(map[string]any)
		if container["name"] == "ca" {
			args, _, _ = unstructured.NestedStringSlice(container, "args")
			return args, true
		}
	}
	return nil, false
}

func runsCA(u *unstructured.Unstructured) bool {
	_, ok := argumentsOfCA(u)
	return ok
}

func hasState(u *unstructured.Unstructured) bool {
	args, _ := argumentsOfCA(u)
	for _, a := range args {
		if strings.HasPrefix(a, stateFlag) {
			return true
		}
	}
	return false
}
