/* tests/support/http/certs_tool.c - writes the certificates of certs.h for integration tests: certs_tool DIRECTORY. */
#include <stdio.h>

#include "tests/support/http/certs.h"

int
main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: certs_tool DIRECTORY\n");
		return 2;
	}
	certs_write(argv[1]);
	return 0;
}
