package serve

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// chargeNewNames charges the account for the added names that the class does not list. The error ends the stream.
func (st *stream) chargeNewNames(sub *subscription, added []string) error {
	current := st.class.Snapshot().Type(sub.url)
	var costly []string
	bytes := 0
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob == nil || !item.Wildcard {
			costly = append(costly, name)
			bytes += len(name) + quota.NameCost
		}
	}
	if len(costly) == 0 {
		return nil
	}
	if reason := st.chargeAccount(bytes); reason != "" {
		return st.account.Refuse(st.node.ID, quota.BudgetNames, reason)
	}
	sub.chargedNames.Add(costly)
	return nil
}

// chargeName charges the stream and the account for a name that is kept outside the subscribed names. It returns "" or
// the reason why it is refused.
func (st *stream) chargeName(name string) (refused string) {
	if st.countName(name) != nil {
		st.uncountName(name)
		return tooManyNames
	}
	if refused = st.chargeAccount(len(name) + quota.NameCost); refused != "" {
		st.uncountName(name)
	}
	return refused
}

// refundName reverses chargeName.
func (st *stream) refundName(name string) {
	st.uncountName(name)
	st.refundAccount(name)
}

// chargeAccount charges the account for bytes of names. It returns "" or the reason why it is refused.
func (st *stream) chargeAccount(bytes int) (refused string) {
	if refused = st.account.ChargeNames(int64(bytes)); refused == "" {
		st.chargedNameBytes += int64(bytes)
	}
	return refused
}

// refundAccount returns to the account what one name was charged.
func (st *stream) refundAccount(name string) {
	n := int64(len(name) + quota.NameCost)
	st.chargedNameBytes -= n
	st.account.RefundNames(n)
}

// countName counts a name against MaxSubscribedBytes, which holds for each stream, whether the name is shared with
// others or not.
func (st *stream) countName(name string) error {
	if st.nameBytes += len(name) + nameOverhead; st.nameBytes > st.server.maxSubscribedBytes {
		return errTooManyNames
	}
	return nil
}

func (st *stream) uncountName(name string) { st.nameBytes -= len(name) + nameOverhead }

const tooManyNames = "too many resource names subscribed to on one stream"

var errTooManyNames = status.Error(codes.ResourceExhausted, tooManyNames)

// nameOverhead is what countName adds for each name. It is no measure of memory: that is quota.NameCost, which the
// account is charged.
const nameOverhead = 64
