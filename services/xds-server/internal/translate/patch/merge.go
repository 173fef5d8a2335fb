package patch

import (
	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/protomerge"
)

func isMerge(op networking.EnvoyFilter_Patch_Operation) bool {
	return op == networking.EnvoyFilter_Patch_MERGE || op == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

// merge merges a patch into a message; MERGE_AND_REPLACE_LIST replaces its lists.
func merge(u *use, into proto.Message) error {
	rules := protomerge.Rules{ReplaceLists: u.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST}
	if err := rules.Merge(into, u.Value); err != nil {
		return u.errorf("%w", err)
	}
	u.done = true
	return nil
}
