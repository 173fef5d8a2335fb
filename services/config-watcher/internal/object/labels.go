package object

// HasLabels reports whether labels contain all labels of a selector. An empty selector selects everything.
func HasLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
