package serve

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// price charges the account for those of the subscription's new names that are not the class's own.
func (st *stream) chargeNewNames(sub *subscription, added []string) error {
	current := st.class.Snapshot().Type(sub.url)
	var costly []string
	bytes := 0
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob == nil || !item.Wildcard {
			costly = append(costly, name)
			bytes += len(name) + nameCost
		}
	}
	if len(costly) == 0 {
		return nil
	}
	if reason := st.chargeAccount(bytes); reason != "" {
		return st.account.refuse(st.node.ID, BudgetNames, reason)
	}
	sub.chargedNames.add(costly)
	return nil
}

// charge counts a name that is kept beside a subscription's, and charges the account for it. It returns why it does
// not.
func (st *stream) chargeName(name string) (refused string) {
	if st.countName(name) != nil {
		st.uncountName(name)
		return tooManyNames
	}
	if refused = st.chargeAccount(len(name) + nameCost); refused != "" {
		st.uncountName(name)
	}
	return refused
}

// discharge takes a charge back.
func (st *stream) refundName(name string) {
	st.uncountName(name)
	st.refundAccount(name)
}

// spend charges the account, or returns why it does not.
func (st *stream) chargeAccount(bytes int) (refused string) {
	if refused = st.account.chargeNames(int64(bytes)); refused == "" {
		st.names += int64(bytes)
	}
	return refused
}

// refund takes the charge for a name back.
func (st *stream) refundAccount(name string) {
	n := int64(len(name) + nameCost)
	st.names -= n
	st.account.refundNames(n)
}

// count counts a name against what one stream may keep, whoever it is shared with.
func (st *stream) countName(name string) error {
	if st.nameBytes += len(name) + nameOverhead; st.nameBytes > st.server.maxSubscribedBytes {
		return errTooManyNames
	}
	return nil
}

func (st *stream) uncountName(name string) { st.nameBytes -= len(name) + nameOverhead }

const tooManyNames = "too many resource names subscribed to on one stream"

var errTooManyNames = status.Error(codes.ResourceExhausted, tooManyNames)

// nameOverhead is what a name counts beside its text against the limit of one stream, which it does whether it is
// shared or not. What it costs, the account is charged: see nameCost.
const nameOverhead = 64
