/* tests/fuzz/fuzz_webconf.c - any bytes as a web configuration, followed after a NUL by an Authorization header. What is accepted
 * of the file is whole; nobody is let in, because no hash of a corpus is of a known password. */
#include <string.h>

#include "common/http/basic_auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(mem) char *text = mem_strndup((const char *)data, size);
	size_t len = strlen(text);
	owned(mem) char *header = len < size ? mem_strndup((const char *)data + len + 1, size - len - 1) : NULL;
	owned(webconf) struct webconf *c = NULL;
	owned(basic_auth) struct basic_auth *a = basic_auth_new();
	struct err err;

	if (!webconf_parse("web.yml", text, len, &c, &err)) {
		ASSERT(err.text[0]);
		return 0;
	}
	ASSERT(!c->cert_file == !c->key_file);
	ASSERT(!c->client_required || c->client_ca_file);
	for (size_t i = 0; i < c->user_count; i++)
		ASSERT(c->users[i].name[0] && c->users[i].cost >= WEBCONF_COST_MIN);
	basic_auth_set(a, c);
	ASSERT(!basic_auth_known(a, header));
	return 0;
}
