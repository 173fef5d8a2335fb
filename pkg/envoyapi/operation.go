package envoyapi

import networking "istio.io/api/networking/v1alpha3"

// MaxProxyVersion is the length of the longest regular expression for proxy versions; a longer one matches no version.
const MaxProxyVersion = 1024

// Operation returns what a patch does, as Istio reads it: INSERT_* counts as ADD for objects whose order does not
// matter. It returns INVALID for a patch that Istio accepts and that changes nothing on any proxy.
func Operation(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) networking.EnvoyFilter_Patch_Operation {
	op := p.GetPatch().GetOperation()
	switch op {
	case networking.EnvoyFilter_Patch_INSERT_BEFORE, networking.EnvoyFilter_Patch_INSERT_AFTER, networking.EnvoyFilter_Patch_INSERT_FIRST:
		if !ordered(p.GetApplyTo()) {
			op = networking.EnvoyFilter_Patch_ADD
		}
	}
	if !effective(p.GetApplyTo(), op) || NeedsName(p.GetApplyTo(), op) && !names(p.GetApplyTo(), p.GetMatch()) {
		return networking.EnvoyFilter_Patch_INVALID
	}
	return op
}

// NeedsName reports whether an operation changes only filters that the match names.
func NeedsName(applyTo networking.EnvoyFilter_ApplyTo, op networking.EnvoyFilter_Patch_Operation) bool {
	switch op {
	case networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE:
		return isFilter(applyTo)
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		return applyTo == networking.EnvoyFilter_LISTENER_FILTER
	default:
		return false
	}
}

// ordered reports whether objects of a kind stand in a list whose order matters.
func ordered(applyTo networking.EnvoyFilter_ApplyTo) bool {
	return isFilter(applyTo) || applyTo == networking.EnvoyFilter_HTTP_ROUTE
}

// isFilter reports whether patches of a kind are for filters.
func isFilter(applyTo networking.EnvoyFilter_ApplyTo) bool {
	switch applyTo {
	case networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_LISTENER_FILTER:
		return true
	default:
		return false
	}
}

// effective reports whether Istio implements an operation for objects of a kind.
func effective(applyTo networking.EnvoyFilter_ApplyTo, op networking.EnvoyFilter_Patch_Operation) bool {
	switch op {
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		return applyTo != networking.EnvoyFilter_EXTENSION_CONFIG
	case networking.EnvoyFilter_Patch_ADD:
		return applyTo != networking.EnvoyFilter_ROUTE_CONFIGURATION && applyTo != networking.EnvoyFilter_BOOTSTRAP
	case networking.EnvoyFilter_Patch_REMOVE:
		switch applyTo {
		case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_EXTENSION_CONFIG, networking.EnvoyFilter_BOOTSTRAP:
			return false
		}
		return true
	case networking.EnvoyFilter_Patch_REPLACE:
		return isFilter(applyTo) || applyTo == networking.EnvoyFilter_VIRTUAL_HOST
	case networking.EnvoyFilter_Patch_INVALID:
		return false
	default: // insertions
		return ordered(applyTo)
	}
}

// names reports whether a match names one of the filters that patches of a kind are for.
func names(applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_EnvoyConfigObjectMatch) bool {
	l := m.GetListener()
	switch filter := l.GetFilterChain().GetFilter(); applyTo {
	case networking.EnvoyFilter_NETWORK_FILTER:
		return filter != nil
	case networking.EnvoyFilter_HTTP_FILTER:
		return filter.GetSubFilter() != nil
	default:
		return l.GetListenerFilter() != ""
	}
}
