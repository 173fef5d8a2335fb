package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// leave makes a change none: what others have made stays as it is. The error is that of a definition with which the
// installation could not work.
func (ch *Change) leave() error {
	ch.left, ch.Action, ch.After = true, Unchanged, ch.Live
	if !ch.IsCRD() {
		return nil
	}
	d := theirs(ch.Live, ch.want)
	ch.definition = &d
	if len(d.versions) > 0 {
		return &oldDefinition{d}
	}
	return nil
}

// left says what stays as others have made it and lacks something of the installation's.
func left(changes []*Change) []string {
	var out []string
	var definitions []definition
	for _, ch := range changes {
		switch {
		case ch == nil || !ch.left:
		case ch.definition != nil:
			definitions = append(definitions, *ch.definition)
		default:
			out = append(out, labelsOf(ch)...)
		}
	}
	return append(out, notes(definitions)...)
}

// labelsOf names the labels that a namespace of others does not have. They are not set: they decide about all Pods in
// it, those of others included.
func labelsOf(ch *Change) []string {
	have := ch.Live.GetLabels()
	var missing []string
	for _, key := range slices.Sorted(maps.Keys(ch.want.GetLabels())) {
		if value := ch.want.GetLabels()[key]; key != ComponentLabel && key != "app.kubernetes.io/part-of" && have[key] != value {
			missing = append(missing, key+"="+value)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{
		fmt.Sprintf("%s was there before and keeps its labels; to hold all that is in it to what the installation needs: kubectl label "+
			"namespace %s %s", ch.ID, ch.Name, strings.Join(missing, " "))}
}
