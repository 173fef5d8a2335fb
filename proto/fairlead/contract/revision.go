package contract

const (
	// DefaultRevision is what labels call the control plane that is meant where none is named: the one that the tag of
	// this name stands for, else the one without a revision.
	DefaultRevision = "default"
	// TagLabel of a MutatingWebhookConfiguration names a tag, which stands for the revision in its RevisionLabel.
	TagLabel = "istio.io/tag"
)

// RevisionOf is the revision of the control plane that an object of the Gateway API is of, by its labels and those of
// its namespace: that one deploys the Gateway and writes the status; all others serve the object, too. As for Pods,
// InjectionLabel of the namespace goes before RevisionLabel. tags are revisions by tag. The revision need not be
// installed.
func RevisionOf(labels, namespace, tags map[string]string) string {
	name := labels[RevisionLabel]
	if name == "" && namespace[InjectionLabel] == "" {
		name = namespace[RevisionLabel]
	}
	if name == "" {
		name = DefaultRevision
	}
	if revision := tags[name]; revision != "" {
		return revision
	}
	return name
}
